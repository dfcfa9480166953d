// The handle of a launched operation, and a function that joins several into
// one.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace brigade {

// A launched operation. Keeps its tensors alive until it has ended.
class Work {
 public:
  virtual ~Work() = default;
  // Orders what follows behind the operation: work that this thread queues on
  // the tensors' device (on the current stream, where the device has streams)
  // sees the result. On the CPU that means that the call blocks until done.
  // Throws CommError naming the operation and the group when a peer was lost or
  // the group's timeout passed. May be called again.
  virtual void wait() = 0;
  // Blocks the calling thread until the operation has ended, whatever the
  // device: called before the host reads the values, or tells a peer of them.
  virtual void wait_on_host() { wait(); }
  // True once wait_on_host() would not block. The result is there after wait().
  virtual bool is_completed() = 0;
  // Steady-clock nanoseconds at which the operation ended, as exactly as the
  // backend reports it; 0 while it is under way.
  virtual int64_t finished_ns() = 0;
  // After wait(), for a reduction that sent less than its whole tensor: the
  // bytes of a dense all-reduce that would have sent as many.
  virtual std::optional<int64_t> reduced_bytes() { return std::nullopt; }
};
using WorkPtr = std::shared_ptr<Work>;  // never null

// A Work that has ended already.
WorkPtr make_completed_work();
// A Work that ends when the work now queued on the device's current stream
// does.
WorkPtr make_queued_work(torch::Device device);

// Operations that are waited for together, and a function that the waiting
// thread calls after them.
struct JointWork {
  // Without any, the Work ends when `then` has run.
  std::vector<WorkPtr> works;
  // Runs once, on the first thread that waits, after all `works` have ended; if
  // it throws, every wait() throws the same. Empty: nothing.
  std::function<void()> then;
  // The device of the tensors that `then` computes on.
  torch::Device device = torch::kCPU;
  // The value of Work::reduced_bytes(); std::nullopt: that of a single work.
  std::optional<int64_t> reduced_bytes;
};
// One Work for all of them; see JointWork.
WorkPtr join_works(JointWork parts);

}  // namespace brigade
