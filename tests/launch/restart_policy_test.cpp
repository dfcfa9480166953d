#include "brigade/launch/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade {
namespace {

using ::testing::HasSubstr;

SupervisorResult killed(int64_t first_step, int64_t last_step) {
  return {
      .exit_code = 137,
      .failures = {{.signal = 9}},
      .first_step = first_step,
      .last_step = last_step};
}

TEST(RestartPolicy, RestartsAtMostThatOften) {
  RestartPolicy policy({.max_restarts = 2});
  EXPECT_TRUE(policy.judge(killed(1, 10)).restarts);
  EXPECT_TRUE(policy.judge(killed(5, 20)).restarts);
  const RestartVerdict last = policy.judge(killed(15, 30));
  EXPECT_FALSE(last.restarts);
  EXPECT_EQ(last.reason, "it was restarted 2 times already");
  EXPECT_EQ(policy.restarts(), 2);
}

TEST(RestartPolicy, SaysNothingWhereNoRestartWasWantedOrNeeded) {
  RestartPolicy none({});
  EXPECT_FALSE(none.judge(killed(1, 2)).restarts);
  EXPECT_EQ(none.judge(killed(1, 2)).reason, "");
  RestartPolicy policy({.max_restarts = 2});
  EXPECT_FALSE(policy.judge({}).restarts);
  EXPECT_EQ(policy.judge({}).reason, "");
}

TEST(RestartPolicy, AnEndThatWasAskedForIsFinal) {
  RestartPolicy policy({.max_restarts = 2});
  SupervisorResult end = killed(1, 2);
  end.was_asked_to_end = true;
  EXPECT_FALSE(policy.judge(end).restarts);
}

TEST(RestartPolicy, AFinalExitCodeIsFinalUnlessASignalKilled) {
  RestartPolicy policy({.max_restarts = 3, .final_exit_codes = {2, 143}});
  EXPECT_TRUE(policy.judge({.exit_code = 3}).restarts);
  const RestartVerdict config = policy.judge({.exit_code = 2});
  EXPECT_FALSE(config.restarts);
  EXPECT_THAT(config.reason, HasSubstr("exit code 2"));
  EXPECT_FALSE(policy.judge({.exit_code = 143}).restarts);
  EXPECT_TRUE(
      policy.judge({.exit_code = 143, .failures = {{.signal = 15}}}).restarts);
}

TEST(RestartPolicy, TheSameFailureAtTheSameStepIsNotTriedAThirdTime) {
  RestartPolicy policy({.max_restarts = 100});
  EXPECT_TRUE(policy.judge(killed(1, 25)).restarts);
  EXPECT_TRUE(policy.judge(killed(21, 25)).restarts);  // began later
  const RestartVerdict verdict = policy.judge(killed(21, 25));
  EXPECT_FALSE(verdict.restarts);
  EXPECT_THAT(verdict.reason, HasSubstr("came no further than step 25"));
}

TEST(RestartPolicy, ALaterStepIsProgressWithoutACheckpointToo) {
  RestartPolicy policy({.max_restarts = 100});
  EXPECT_TRUE(policy.judge(killed(1, 3)).restarts);
  EXPECT_TRUE(policy.judge(killed(1, 10)).restarts);
  EXPECT_FALSE(policy.judge(killed(1, 9)).restarts);
}

TEST(RestartPolicy, ProgramsThatReportNoStepsAreOnlyCounted) {
  RestartPolicy policy({.max_restarts = 3});
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(policy.judge(killed(-1, -1)).restarts);
  EXPECT_FALSE(policy.judge(killed(-1, -1)).restarts);
}

}  // namespace
}  // namespace brigade
