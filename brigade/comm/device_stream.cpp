#include "brigade/comm/device_stream.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

using c10::impl::VirtualGuardImpl;

c10::Stream current_stream(torch::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

// libtorch 2.x can block for an event; earlier ones can only query it.
template <typename AnyEvent>
void block_until(const AnyEvent& event) {
  if constexpr (requires { event.synchronize(); }) {
    event.synchronize();
  } else {
    constexpr std::chrono::microseconds kPause{20};
    while (!event.query())
      std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

bool is_asynchronous(torch::Device device) {
  return !device.is_cpu() && !device.is_meta();
}

void use_device(torch::Device device) {
  if (is_asynchronous(device))
    VirtualGuardImpl(device.type()).setDevice(device);
}

namespace {

// A device's clock in steady-clock nanoseconds, since events only tell the time
// between two. It is set again now and then, because the clocks drift apart.
class DeviceClock {
 public:
  explicit DeviceClock(torch::Device device) : stream_(device) {}

  // Returns the present time if libtorch's events have no times.
  int64_t time_ns(const c10::Event& event) {
    const std::lock_guard lock(mutex_);
    constexpr int64_t kLongest = 10'000'000'000;
    if (!base_ || steady_now_ns() - base_ns_ > kLongest)
      set();
    return base_ns_ + elapsed_ns(*base_, event);
  }

  static DeviceClock& of(torch::Device device) {
    static std::mutex mutex;
    static std::map<std::pair<int, int>, std::unique_ptr<DeviceClock>> clocks;
    const std::lock_guard lock(mutex);
    auto& clock = clocks[{
        static_cast<int>(device.type()), static_cast<int>(device.index())}];
    if (!clock)
      clock = std::make_unique<DeviceClock>(device);
    return *clock;
  }

 private:
  void set() {
    const StreamScope scope(stream_);
    base_ = std::make_unique<c10::Event>(
        stream_.device().type(), c10::EventFlag::BACKEND_DEFAULT);
    base_->record(current_stream(stream_.device()));
    block_until(*base_);
    base_ns_ = steady_now_ns();
  }

  template <typename AnyEvent>
  int64_t elapsed_ns(const AnyEvent& from, const AnyEvent& to) {
    if constexpr (requires { from.elapsedTime(to); })
      return static_cast<int64_t>(from.elapsedTime(to) * 1e6);
    else
      return steady_now_ns() - base_ns_;
  }

  SideStream stream_;
  std::mutex mutex_;
  std::unique_ptr<c10::Event> base_;
  int64_t base_ns_ = 0;
};

}  // namespace

struct StreamMark::Event {
  Event(torch::Device where, const c10::Stream& stream, c10::EventFlag flag)
      : device(where), event(where.type(), flag) {
    event.record(stream);
  }
  torch::Device device;
  c10::Event event;
  std::atomic<int64_t> reached_ns{0};
};

StreamMark StreamMark::of_current_stream(torch::Device device) {
  StreamMark mark;
  if (is_asynchronous(device))
    mark.event_ = std::make_shared<Event>(
        device, current_stream(device), c10::EventFlag::PYTORCH_DEFAULT);
  return mark;
}

StreamMark StreamMark::timed(torch::Device device) {
  StreamMark mark;
  mark.made_ns_ = steady_now_ns();
  if (is_asynchronous(device))
    mark.event_ = std::make_shared<Event>(
        device, current_stream(device), c10::EventFlag::BACKEND_DEFAULT);
  return mark;
}

int64_t StreamMark::reached_ns() const {
  if (!event_)
    return made_ns_;
  if (event_->reached_ns == 0 && event_->event.query())
    event_->reached_ns = DeviceClock::of(event_->device).time_ns(event_->event);
  return event_->reached_ns;
}

void StreamMark::wait() const {
  if (event_)
    event_->event.block(current_stream(event_->device));
}

void StreamMark::wait_on_host() const {
  if (event_)
    block_until(event_->event);
}

bool StreamMark::is_reached() const {
  return !event_ || event_->event.query();
}

void StreamTrail::add_current_stream(torch::Device device) {
  if (!is_asynchronous(device))
    return;
  const c10::Stream stream = current_stream(device);
  const auto known =
      std::find_if(marks_.begin(), marks_.end(), [&](const Written& written) {
        return written.stream == stream;
      });
  StreamMark mark = StreamMark::of_current_stream(device);
  if (known == marks_.end())
    marks_.push_back({stream, std::move(mark)});
  else
    known->mark = std::move(mark);
}

void StreamTrail::wait() {
  for (const Written& written : marks_) {
    // A stream's work is in order anyway.
    if (written.stream != current_stream(written.stream.device()))
      written.mark.wait();
  }
  marks_.clear();
}

SideStream::SideStream(torch::Device device) : device_(device) {
  if (is_asynchronous(device)) {
    stream_ = std::make_unique<c10::Stream>(
        VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  }
}

StreamScope::StreamScope(const SideStream& stream) {
  if (stream.stream_) {
    before_ =
        std::make_unique<c10::Stream>(VirtualGuardImpl(stream.device_.type())
                                          .exchangeStream(*stream.stream_));
  }
}

StreamScope::~StreamScope() {
  if (before_)
    VirtualGuardImpl(before_->device_type()).exchangeStream(*before_);
}

torch::Tensor to_device(const torch::Tensor& tensor, torch::Device device) {
  if (device.is_cpu())
    return tensor;
  if (!device.is_cuda())
    return tensor.to(device);
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

torch::Tensor to_host(const torch::Tensor& tensor) {
  return tensor.to(torch::kCPU);
}

}  // namespace brigade
