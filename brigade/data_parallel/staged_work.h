// Reductions of buckets that need a second collective after the first, such as
// sums, and then sending them. The first ones are launched during backward.
// The thread that waits for the step's end launches the second ones of all
// buckets under way, in the order in which the first were launched, so that
// ranks launch alike and one bucket's arithmetic overlaps with another's
// transfer.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "brigade/comm/communicator.h"

namespace brigade {

struct ReductionStages {
  WorkPtr first;
  std::function<WorkPtr()> second;  // after the first has ended
  std::function<void()> last;       // after the second has ended
  int64_t reduced_bytes = 0;        // see Work::reduced_bytes()
};

class StagedReductions {
 public:
  // Its wait() leaves the result of `last`.
  WorkPtr add(ReductionStages stages);

 private:
  class StagedWork;
  using Queue = std::deque<std::shared_ptr<StagedWork>>;

  // Those whose second collective is not launched; shared with their Works.
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace brigade
