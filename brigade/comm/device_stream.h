// The order of work on a device: what is queued on its streams, and who waits
// for it. All that Brigade does with streams and events goes through here.
//
// Streams and events themselves are libtorch's (c10::impl::
// DeviceGuardImplInterface): CUDA registers its own, and so does the device of
// tests/device. The CPU and the meta device have none: work there is done when
// a call returns, so that nothing below waits, allocates or fails.
#pragma once

#include <c10/core/Stream.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace brigade {

// Whether calls on tensors of this device return before their work is done.
bool is_asynchronous(torch::Device device);

// Makes it the calling thread's device of its kind.
void use_device(torch::Device device);

// A place in a stream: behind all that had been queued there when it was made.
// Cheap to copy. Any thread.
class StreamMark {
 public:
  // Behind nothing.
  StreamMark() = default;
  // Behind what this thread's current stream of the device holds.
  static StreamMark of_current_stream(torch::Device device);
  // The same, which also knows when it is reached.
  static StreamMark timed(torch::Device device);

  // What this thread queues on its current stream from now on runs after the
  // place was reached.
  void wait() const;
  // Blocks until it was reached.
  void wait_on_host() const;
  bool is_reached() const;
  // When a timed mark was reached, in steady-clock nanoseconds by the device's
  // own clock; 0 while it is not. Without streams: when it was made.
  int64_t reached_ns() const;

 private:
  struct Event;
  std::shared_ptr<Event> event_;  // null: nothing to wait for
  int64_t made_ns_ = 0;
};

// The streams that wrote into a buffer: backward may fill it from several, and
// what reads it must run behind all of them. One thread at a time.
class StreamTrail {
 public:
  // The buffer was written on this thread's current stream.
  void add_current_stream(torch::Device device);
  // What this thread queues on its current stream from now on runs after all
  // that was added, which is then forgotten.
  void wait();
  // Forgets what was added.
  void clear() { marks_.clear(); }

 private:
  struct Written {
    c10::Stream stream;
    StreamMark mark;
  };
  std::vector<Written> marks_;  // the last of each stream
};

// A stream of the device's pool. Work is queued on it by making it the current
// one of a thread for a while: see StreamScope.
class SideStream {
 public:
  explicit SideStream(torch::Device device);
  torch::Device device() const { return device_; }

 private:
  friend class StreamScope;
  torch::Device device_;
  // Null: the device has no streams.
  std::unique_ptr<c10::Stream> stream_;
};

// While it lives, the stream is this thread's current one of its device.
class StreamScope {
 public:
  explicit StreamScope(const SideStream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::unique_ptr<c10::Stream> before_;  // null: nothing was changed
};

// A copy of a CPU tensor on the device: without waiting, through page-locked
// memory where the device is a GPU. On the CPU, the tensor itself.
torch::Tensor to_device(const torch::Tensor& tensor, torch::Device device);

// A copy in CPU memory, there when the call returns: after all that was queued
// for the tensor on the current stream. A CPU tensor is returned itself.
torch::Tensor to_host(const torch::Tensor& tensor);

}  // namespace brigade
