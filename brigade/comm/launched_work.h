// The Work that a launcher gets for a recorded operation. Used by the files of
// comm/ only.
#pragma once

#include <cstdint>
#include <utility>

#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/work.h"
#include "brigade/metrics/clock.h"

namespace brigade {

// Wraps the backend's Work and tells the flight recorder how it ended, when a
// waiting thread sees it.
class LaunchedWork : public Work {
 public:
  LaunchedWork(WorkPtr inner, FlightRecorderPtr recorder, int64_t flight_id)
      : inner_(std::move(inner)),
        recorder_(std::move(recorder)),
        flight_id_(flight_id) {}

  void wait() override {
    const int64_t begun_ns = await([&] { inner_->wait(); });
    if (inner_->is_completed())
      recorder_->finished(flight_id_, begun_ns);
    else
      recorder_->ordered(flight_id_, inner_);
  }
  void wait_on_host() override {
    const int64_t begun_ns = await([&] { inner_->wait_on_host(); });
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
    recorder_->set_awaited(flight_id_, true);
    const int64_t begun_ns = steady_now_ns();
    try {
      wait();
    } catch (...) {
      recorder_->failed(flight_id_);
      throw;
    }
    return begun_ns;
  }

  WorkPtr inner_;
  FlightRecorderPtr recorder_;
  int64_t flight_id_;
};

}  // namespace brigade
