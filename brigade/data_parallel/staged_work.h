// Reductions of buckets that need a second collective after the first: sums and
// then their sending (int8_hook()), or two sums (powersgd_hook()). The first
// ones are launched during backward. The thread that waits for a bucket
// launches the second ones, up to that bucket's, in the order in which the
// first were launched, so that all ranks launch in the same order. One bucket's
// arithmetic overlaps with the first transfers of the buckets behind it.
//
// One object may serve several communicators at once, each from the threads of
// its rank.
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
  // Adds a reduction by collectives over `communicator`. The Work's wait()
  // returns after `last`.
  WorkPtr add(const Communicator& communicator, ReductionStages stages);

 private:
  class StagedWork;
  // The reductions of one communicator whose second collective is not launched
  // yet. The Works own the queue, so that after a step that was given up it is
  // freed together with them.
  using Queue = std::deque<std::weak_ptr<StagedWork>>;

  std::mutex mutex_;
  std::map<const Communicator*, std::weak_ptr<Queue>> queues_;
};

}  // namespace brigade
