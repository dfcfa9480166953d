// What a launcher gets of its operation, and what the records keep of it; for
// the files of comm/ only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/work.h"
#include "brigade/metrics/clock.h"

namespace brigade {

// When an operation ended, for the records. Keeps neither the Work nor its
// tensors alive: the weights that were broadcast when a module was wrapped,
// say.
class LaunchEnd {
 public:
  explicit LaunchEnd(const WorkPtr& work) : work_(work) {}
  // 0: it is under way.
  void note(int64_t finished_ns) {
    if (finished_ns != 0)
      finished_ns_.store(finished_ns);
  }
  int64_t finished_ns() {  // 0 while it is under way
    if (const auto work = work_.lock())
      note(work->finished_ns());
    return finished_ns_.load();
  }

 private:
  std::weak_ptr<Work> work_;
  std::atomic<int64_t> finished_ns_{0};
};

// The backend's Work, which tells the flight recorder and the records how it
// ended, as its waiters see it.
class LaunchedWork : public Work {
 public:
  // `recorder` and `end` may be null: then they note nothing.
  LaunchedWork(
      WorkPtr inner,
      FlightRecorderPtr recorder,
      int64_t flight_id,
      std::shared_ptr<LaunchEnd> end)
      : inner_(std::move(inner)),
        recorder_(std::move(recorder)),
        flight_id_(flight_id),
        end_(std::move(end)) {}
  ~LaunchedWork() override {
    if (end_)
      end_->note(inner_->finished_ns());
  }

  void wait() override {
    const int64_t begun_ns = await([&] { inner_->wait(); });
    if (!recorder_)
      return;
    if (inner_->is_completed())
      recorder_->finished(flight_id_, begun_ns);
    else
      recorder_->ordered(flight_id_, inner_);
  }
  void wait_on_host() override {
    const int64_t begun_ns = await([&] { inner_->wait_on_host(); });
    if (recorder_)
      recorder_->finished(flight_id_, begun_ns);
  }
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }
  std::optional<int64_t> reduced_bytes() override {
    return inner_->reduced_bytes();
  }

 private:
  // Returns when it began.
  template <typename Wait>
  int64_t await(const Wait& wait) {
    if (recorder_)
      recorder_->set_awaited(flight_id_, true);
    const int64_t begun_ns = steady_now_ns();
    try {
      wait();
    } catch (...) {
      if (recorder_)
        recorder_->failed(flight_id_);
      throw;
    }
    return begun_ns;
  }

  WorkPtr inner_;
  FlightRecorderPtr recorder_;
  int64_t flight_id_;
  std::shared_ptr<LaunchEnd> end_;
};

}  // namespace brigade
