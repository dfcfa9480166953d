#include "brigade/comm/work.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "brigade/comm/device_stream.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

// The work that a stream of the launching thread holds; nothing on the CPU.
class QueuedWork : public Work {
 public:
  explicit QueuedWork(torch::Device device)
      : mark_(StreamMark::timed(device)) {}
  void wait() override { mark_.wait(); }
  void wait_on_host() override { mark_.wait_on_host(); }
  bool is_completed() override { return mark_.is_reached(); }
  int64_t finished_ns() override { return mark_.reached_ns(); }

 private:
  StreamMark mark_;
};

class JoinedWork : public Work {
 public:
  explicit JoinedWork(JointWork parts) : parts_(std::move(parts)) {}

  void wait() override {
    for (const WorkPtr& work : parts_.works)
      work->wait();
    run_then();
  }

  void wait_on_host() override {
    for (const WorkPtr& work : parts_.works)
      work->wait_on_host();
    run_then();
    StreamMark::of_current_stream(parts_.device).wait_on_host();
  }

  bool is_completed() override {
    if (parts_.works.empty())
      return then_ended_ns_ != 0;
    return std::all_of(
        parts_.works.begin(), parts_.works.end(), [](const WorkPtr& work) {
          return work->is_completed();
        });
  }

  int64_t finished_ns() override {
    if (parts_.works.empty())
      return then_ended_ns_;
    int64_t last = 0;
    for (const WorkPtr& work : parts_.works) {
      const int64_t finished = work->finished_ns();
      if (finished == 0)
        return 0;
      last = std::max(last, finished);
    }
    return last;
  }

  std::optional<int64_t> reduced_bytes() override {
    if (parts_.reduced_bytes || parts_.works.size() != 1)
      return parts_.reduced_bytes;
    return parts_.works.front()->reduced_bytes();
  }

 private:
  void run_then() {
    if (const auto then = std::exchange(parts_.then, nullptr)) {
      try {
        then();
        then_ended_ns_ = steady_now_ns();
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    if (error_)
      std::rethrow_exception(error_);
  }

  JointWork parts_;
  std::exception_ptr error_;
  std::atomic<int64_t> then_ended_ns_{0};  // other threads ask for it
};

}  // namespace

WorkPtr make_completed_work() {
  return make_queued_work(torch::kCPU);
}

WorkPtr make_queued_work(torch::Device device) {
  return std::make_shared<QueuedWork>(device);
}

WorkPtr join_works(JointWork parts) {
  return std::make_shared<JoinedWork>(std::move(parts));
}

}  // namespace brigade
