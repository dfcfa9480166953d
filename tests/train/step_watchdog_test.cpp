#include "brigade/train/step_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "brigade/flight/recording.h"
#include "brigade/metrics/clock.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout{200};

FlightRecorderPtr recorder_of(bool has_operation_under_way) {
  auto recorder = std::make_shared<FlightRecorder>(3);
  recorder->add_group({.name = "dp", .members = {1, 3}, .member_names = {}});
  if (has_operation_under_way) {
    FlightOperation operation;
    operation.dtype = "Float";
    operation.numel = 10;
    operation.kind = "send";  // which nobody has looked after yet
    recorder->begin(operation);
    operation.kind = "all_reduce";
    recorder->set_awaited(recorder->begin(operation), true);
  }
  return recorder;
}

class StepWatchdogTest : public ::testing::TestWithParam<bool> {
 protected:
  TemporaryFolder folder_;
};

TEST_P(StepWatchdogTest, AStepThatDoesNotEndIsReportedWithWhatItWaitsFor) {
  std::atomic<int64_t> deadline_ns = 0;
  std::promise<Stall> stall;
  StepWatchdog watch(
      recorder_of(GetParam()),
      folder_.path(),
      {.step_timeout = kTimeout,
       .on_step = [&](int64_t, int64_t deadline) { deadline_ns = deadline; },
       .takes_recording_request = {},
       .on_recording = {},
       .on_stall = [&](const Stall& seen) { stall.set_value(seen); }});
  const int64_t begun_ns = steady_now_ns();
  watch.begin_step(12);
  EXPECT_GE(deadline_ns - begun_ns, std::chrono::nanoseconds(kTimeout).count());
  const Stall seen = stall.get_future().get();
  EXPECT_GE(steady_now_ns(), deadline_ns);
  EXPECT_EQ(seen.waits_for_peers, GetParam());
  EXPECT_THAT(
      seen.reason,
      AllOf(
          HasSubstr("step 12 did not end within 0.2 s"),
          HasSubstr(
              GetParam() ? "waited in all_reduce #0 of 10 x Float in group 'dp'"
                         : "waited in no operation")));
  const auto recordings = read_flight_recordings(folder_.path());
  ASSERT_EQ(recordings.size(), 1U);
  EXPECT_EQ(recordings[0].rank, 3);
  EXPECT_EQ(recordings[0].step, 12);
  EXPECT_EQ(recordings[0].reason, seen.reason);
  EXPECT_EQ(recordings[0].cause, FlightCause::kFailure);
}

INSTANTIATE_TEST_SUITE_P(
    Waits,
    StepWatchdogTest,
    ::testing::Bool(),
    [](const auto& each) { return each.param ? "ForPeers" : "ForNobody"; });

TEST_F(StepWatchdogTest, StepsThatEndAndWhatFollowsThemAreNotTimed) {
  std::atomic<bool> has_stalled = false;
  std::promise<void> looked;
  std::atomic<int> looks = 0;
  {
    StepWatchdog watch(
        recorder_of(false),
        folder_.path(),
        {.step_timeout = std::chrono::hours(1),
         .on_step = {},
         .takes_recording_request =
             [&] {
               if (++looks == 3)
                 looked.set_value();
               return std::nullopt;
             },
         .on_recording = {},
         .on_stall = [&](const Stall&) { has_stalled = true; }});
    for (int64_t step = 1; step < 100; ++step)
      watch.begin_step(step);
    watch.end_steps();
    looked.get_future().wait();
  }
  EXPECT_FALSE(has_stalled);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "rank-3.json"));
}

TEST_F(StepWatchdogTest, ARequestWritesTheRecordingAndSaysSo) {
  std::atomic<int> looks = 0;
  std::promise<void> is_written;
  StepWatchdog watch(
      recorder_of(false),
      folder_.path(),
      {.step_timeout = {},
       .on_step = {},
       .takes_recording_request =
           [&] {
             return ++looks == 1 ? std::optional(FlightCause::kRequest)
                                 : std::nullopt;
           },
       .on_recording = [&] { is_written.set_value(); },
       .on_stall = {}});
  is_written.get_future().wait();
  const FlightRecording recording =
      read_flight_recordings(folder_.path()).at(0);
  EXPECT_THAT(recording.reason, HasSubstr("SIGQUIT"));
  EXPECT_EQ(recording.cause, FlightCause::kRequest);
}

// The failure that is being reported is another one.
TEST_F(StepWatchdogTest, AFolderThatCannotBeMadeIsNoError) {
  StepWatchdog watch(recorder_of(false), "/proc/no", {});
  watch.write_recording("test");
}

}  // namespace
}  // namespace brigade
