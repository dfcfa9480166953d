// The order of work on a device: what is queued on its streams, and which
// streams or hosts wait for it. Brigade uses streams and events only through
// this file.
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

// Makes this the calling thread's current device of its kind.
void use_device(torch::Device device);

// A place in a stream: behind all that had been queued there when it was made.
// Cheap to copy. Any thread.
class StreamMark {
 public:
  // A mark behind nothing.
  StreamMark() = default;
  // A mark behind the work that this thread's current stream of the device
  // holds.
  static StreamMark of_current_stream(torch::Device device);
  // The same, but it also records the time when it is reached.
  static StreamMark timed(torch::Device device);

  // Makes this thread's current stream wait: what is queued on it from now on
  // runs after the mark was reached.
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
  // Makes this thread's current stream wait for all marks that were added, and
  // forgets them.
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

// A stream of the device's pool. Work is queued on it while it is a thread's
// current stream: see StreamScope.
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

// A copy of a CPU tensor on the device, made without waiting (through
// page-locked memory if the device is a GPU). On the CPU, the tensor itself.
torch::Tensor to_device(const torch::Tensor& tensor, torch::Device device);

// A copy in CPU memory, made after all work that was queued on the current
// stream and complete when the call returns. A CPU tensor is returned itself.
torch::Tensor to_host(const torch::Tensor& tensor);

}  // namespace brigade
