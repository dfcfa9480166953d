// The watchdog of a rank's steps, on a thread of its own: if a step does not
// end in time, because the training thread spins, waits for its data or for a
// lost peer, it writes the flight recording and calls on_stall, which ends the
// process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "brigade/comm/flight_recorder.h"
#include "brigade/flight/recording.h"

namespace brigade {

// A step that did not end in time.
struct Stall {
  std::string reason;
  // Whether it waits for other ranks, in an operation.
  bool waits_for_peers = false;
};

struct StepWatchdogOptions {
  // The longest time of a step; 0: no limit.
  std::chrono::milliseconds step_timeout{0};
  // Called at the start of each step with its number, and its deadline in
  // nanoseconds of the steady clock (0: none), for a supervisor. May be empty.
  std::function<void(int64_t step, int64_t deadline_ns)> on_step;
  // Why a recording was asked for since the last call (SIGQUIT), looked up ten
  // times a second; std::nullopt: none was. Empty: never.
  std::function<std::optional<FlightCause>()> takes_recording_request;
  // Called on the watchdog's thread once that recording is written, or could
  // not be. May be empty.
  std::function<void()> on_recording;
  // Called on the watchdog's thread once a step's deadline has passed and the
  // recording is written. Expected to end the process. Empty: nothing is
  // watched.
  std::function<void(const Stall&)> on_stall;
};

class StepWatchdog {
 public:
  // Recordings go to `folder` (flight/recording.h), which is made when needed.
  StepWatchdog(
      FlightRecorderPtr recorder,
      std::filesystem::path folder,
      StepWatchdogOptions options);
  ~StepWatchdog();
  StepWatchdog(const StepWatchdog&) = delete;
  StepWatchdog& operator=(const StepWatchdog&) = delete;

  // From now on the rank is in this step; may be called again in it, where
  // something begins that takes its own time.
  void begin_step(int64_t step);
  // Nothing is timed until the next begin_step().
  void end_steps();

  // Writes the recording of a failure. A disk that refuses it, or does not
  // answer within a second, is no error: another one is being reported.
  void write_recording(const std::string& reason) noexcept;

 private:
  void watch();
  Stall describe_stall() const;
  void write(
      FlightCause cause,
      const std::string& reason,
      int64_t paused_ns) noexcept;

  const FlightRecorderPtr recorder_;
  const std::filesystem::path folder_;
  const StepWatchdogOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  int64_t step_ = 0;
  int64_t deadline_ns_ = 0;  // 0: none
  int64_t paused_ns_ = 0;    // of the step, the longest
  std::thread thread_;
};

}  // namespace brigade
