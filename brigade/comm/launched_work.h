// What a launcher gets of its operation, and what the records keep of it; for
// the files of comm/ only.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/work.h"

namespace brigade {

// When an operation ended, for the records. Keeps neither the Work nor its
// tensors alive: the weights that were broadcast when a module was wrapped,
// say.
class LaunchEnd {
 public:
  explicit LaunchEnd(const WorkPtr& work) : work_(work) {}
  void note(int64_t finished_ns);
  int64_t finished_ns();  // 0 while it is under way

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
      std::shared_ptr<LaunchEnd> end);
  ~LaunchedWork() override;

  void wait() override;
  void wait_on_host() override;
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }
  std::optional<int64_t> reduced_bytes() override {
    return inner_->reduced_bytes();
  }

 private:
  int64_t begin_wait();  // when it began
  template <typename Wait>
  void guarded(const Wait& wait);

  WorkPtr inner_;
  FlightRecorderPtr recorder_;
  int64_t flight_id_;
  std::shared_ptr<LaunchEnd> end_;
};

}  // namespace brigade
