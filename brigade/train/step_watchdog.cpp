#include "brigade/train/step_watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};
constexpr std::chrono::seconds kDiskWait{1};
// Between two looks: more is a process that did not run.
constexpr int64_t kPauseNs = 1'000'000'000;

// The oldest operation under way that somebody waits for, else the oldest under
// way, with its group; nullopt: none is.
std::optional<std::string> describe_wait(const FlightRecording& recording) {
  const FlightOperation* found = nullptr;
  for (const FlightOperation& operation : recording.operations) {
    if (operation.state != FlightState::kUnderWay)
      continue;
    if (found == nullptr || (operation.is_awaited && !found->is_awaited))
      found = &operation;
  }
  if (found == nullptr)
    return std::nullopt;
  return fmt::format(
      "{} #{} of {} x {} in group '{}'",
      found->kind,
      found->sequence_number,
      found->numel,
      found->dtype,
      recording.groups[static_cast<size_t>(found->group)].name);
}

}  // namespace

StepWatchdog::StepWatchdog(
    FlightRecorderPtr recorder,
    std::filesystem::path folder,
    StepWatchdogOptions options)
    : recorder_(std::move(recorder)),
      folder_(std::move(folder)),
      options_(std::move(options)),
      thread_([this] { watch(); }) {}

StepWatchdog::~StepWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWatchdog::begin_step(int64_t step) {
  recorder_->begin_step(step);
  const std::lock_guard lock(mutex_);
  step_ = step;
  paused_ns_ = 0;
  deadline_ns_ =
      options_.step_timeout.count() > 0
          ? steady_now_ns() +
                std::chrono::nanoseconds(options_.step_timeout).count()
          : 0;
  if (options_.on_step)
    options_.on_step(step, deadline_ns_);
}

void StepWatchdog::end_steps() {
  const std::lock_guard lock(mutex_);
  deadline_ns_ = 0;
  if (options_.on_step)
    options_.on_step(step_, 0);
}

void StepWatchdog::write_recording(const std::string& reason) noexcept {
  int64_t paused_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    paused_ns = paused_ns_;
  }
  write(FlightCause::kFailure, reason, paused_ns);
}

void StepWatchdog::write(
    FlightCause cause,
    const std::string& reason,
    int64_t paused_ns) noexcept {
  try {
    // A disk that hangs must not keep the process: then the thread is left.
    auto recording =
        std::make_shared<FlightRecording>(recorder_->recording(reason));
    recording->cause = cause;
    recording->paused_ns = paused_ns;
    auto written = std::make_shared<std::promise<void>>();
    auto end = written->get_future();
    std::thread([recording, written, folder = folder_] {
      try {
        write_flight_recording(folder, *recording);
      } catch (const std::exception&) {
        // The failure that is recorded is what gets reported.
      }
      written->set_value();
    }).detach();
    end.wait_for(kDiskWait);
  } catch (const std::exception&) {
    // Likewise: no memory, no thread.
  }
}

Stall StepWatchdog::describe_stall() const {
  const auto waits_for = describe_wait(recorder_->recording(""));
  const bool is_paused = paused_ns_ >= kPauseNs;
  std::string what;
  if (is_paused) {
    what = fmt::format(
        "and the process did not run for {:.1f} s of it",
        static_cast<double>(paused_ns_) / 1e9);
  } else if (waits_for) {
    what = "and waited in " + *waits_for;
  } else {
    what = "and waited in no operation: it computes, reads or spins";
  }
  return {
      .reason = fmt::format(
          "[watch] step {} did not end within {} s "
          "(training.step_timeout_seconds) {}",
          step_,
          std::chrono::duration<double>(options_.step_timeout).count(),
          what),
      .waits_for_peers = waits_for.has_value() && !is_paused};
}

void StepWatchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const int64_t begun_ns = steady_now_ns();
    changed_.wait_for(lock, kLookEvery);
    if (const int64_t pause_ns = steady_now_ns() - begun_ns;
        pause_ns >= kPauseNs)
      paused_ns_ = std::max(paused_ns_, pause_ns);
    std::optional<FlightCause> asked;
    const bool is_late = options_.on_stall && deadline_ns_ != 0 &&
                         steady_now_ns() >= deadline_ns_;
    if (is_late) {
      const Stall stall = describe_stall();
      const int64_t paused_ns = paused_ns_;
      deadline_ns_ = 0;
      lock.unlock();
      write(FlightCause::kFailure, stall.reason, paused_ns);
      options_.on_stall(stall);
      lock.lock();
    } else if (
        options_.takes_recording_request &&
        (asked = options_.takes_recording_request())) {
      const int64_t paused_ns = paused_ns_;
      lock.unlock();
      write(*asked, "a recording was asked for (SIGQUIT)", paused_ns);
      if (options_.on_recording)
        options_.on_recording();
      lock.lock();
    }
  }
}

}  // namespace brigade
