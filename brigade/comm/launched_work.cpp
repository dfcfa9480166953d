#include "brigade/comm/launched_work.h"

#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {

void LaunchEnd::note(int64_t finished_ns) {
  if (finished_ns != 0)
    finished_ns_.store(finished_ns);
}

int64_t LaunchEnd::finished_ns() {
  if (const auto work = work_.lock())
    note(work->finished_ns());
  return finished_ns_.load();
}

LaunchedWork::LaunchedWork(
    WorkPtr inner,
    FlightRecorderPtr recorder,
    int64_t flight_id,
    std::shared_ptr<LaunchEnd> end)
    : inner_(std::move(inner)),
      recorder_(std::move(recorder)),
      flight_id_(flight_id),
      end_(std::move(end)) {}

LaunchedWork::~LaunchedWork() {
  if (end_)
    end_->note(inner_->finished_ns());
}

int64_t LaunchedWork::begin_wait() {
  if (recorder_)
    recorder_->set_awaited(flight_id_, true);
  return steady_now_ns();
}

template <typename Wait>
void LaunchedWork::guarded(const Wait& wait) {
  try {
    wait();
  } catch (...) {
    if (recorder_)
      recorder_->failed(flight_id_);
    throw;
  }
}

void LaunchedWork::wait() {
  const int64_t begun_ns = begin_wait();
  guarded([&] { inner_->wait(); });
  if (!recorder_)
    return;
  if (inner_->is_completed())
    recorder_->finished(flight_id_, begun_ns);
  else
    recorder_->ordered(flight_id_, inner_);
}

void LaunchedWork::wait_on_host() {
  const int64_t begun_ns = begin_wait();
  guarded([&] { inner_->wait_on_host(); });
  if (recorder_)
    recorder_->finished(flight_id_, begun_ns);
}

}  // namespace brigade
