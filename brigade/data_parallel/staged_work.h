// Reductions of buckets that need a second collective after the first, such as
// sums, and then sending them. The first ones are launched during backward.
// The thread that waits for the step's end launches the second ones of all
// buckets under way, in the order in which the first were launched, so that
// ranks launch alike and one bucket's arithmetic overlaps with another's
// transfer.
//
// Several communicators may be served at once, each by the threads of its rank.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

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
  // Of collectives over `communicator`. Its wait() leaves the result of `last`.
  WorkPtr add(const Communicator& communicator, ReductionStages stages);

 private:
  class StagedWork;
  // Those of one communicator whose second collective is not launched. The
  // Works hold it: those of a step that was given up are gone with it, and so
  // is what they refer to.
  using Queue = std::deque<std::weak_ptr<StagedWork>>;

  std::mutex mutex_;
  std::map<const Communicator*, std::weak_ptr<Queue>> queues_;
};

}  // namespace brigade
