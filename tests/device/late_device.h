// A device for tests, on libtorch's PrivateUse1, on which what a GPU forgives
// goes wrong: it computes with libtorch's CPU kernels, but
//
//   * its tensors' memory may not be touched: who reads or writes through
//     data_ptr() dies of SIGSEGV. Device work finds the values elsewhere;
//   * every call on its tensors is queued on the thread's current stream and
//     carried out later by the stream's own thread. Shapes come from the meta
//     device, so that what depends on values cannot be queued;
//   * new memory is full of NaN;
//   * one kind of stream lags, as Lag says: what is not ordered behind it comes
//     too early.
//
// Streams, events and guards are those of c10::impl::DeviceGuardImplInterface,
// which comm/device_stream.h uses. libtorch 2.x.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace brigade::testing {

// The streams that are late. The others run at once.
enum class Lag {
  // Default streams do only what somebody waits for.
  kCompute,
  // Other streams begin each piece of work after two milliseconds.
  kTransfers,
  // Other streams are late, and do only what somebody waits for.
  kHeldTransfers,
};
// Holds for work that is queued from now on.
void set_lag(Lag lag);

// Blocks until all streams but default ones have done their work.
void wait_for_transfers();

// One of the devices 0 to 7; each rank that is a thread has its own.
torch::Device late_device(int index);

// Queues `work` on the current stream: it sees the tensors' values as CPU
// tensors over the same memory.
void queue_late(
    const std::vector<torch::Tensor>& tensors,
    std::function<void(const std::vector<torch::Tensor>& on_cpu)> work);

}  // namespace brigade::testing
