// Tracks which parameters have gradients, in which order they became ready, and
// how often backward reached them.
#include "brigade/data_parallel/step_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::vector<Param> params_named(const std::vector<std::string>& names) {
  std::vector<Param> params;
  for (const std::string& name : names)
    params.push_back({.name = name});
  return params;
}

TEST(StepProgress, TheOrderIsThatInWhichParametersBecameReady) {
  const auto params = params_named({"a", "b", "c"});
  StepProgress progress(params);
  progress.make_ready(2);
  progress.make_ready(0);
  EXPECT_THAT(progress.ready_order(), ElementsAre(2, 0));
  EXPECT_THAT(progress.used(), ElementsAre(1, 0, 1));
  EXPECT_FALSE(progress.all_are_ready());
  // A parameter without a gradient is only in the complete order.
  progress.make_ready_without_gradient(1);
  EXPECT_THAT(progress.ready_order(), ElementsAre(2, 0));
  EXPECT_THAT(progress.complete_order(), ElementsAre(2, 0, 1));
  EXPECT_EQ(progress.state_of(1), ReadyState::kReady);
  progress.reset();
  EXPECT_THAT(progress.ready_order(), IsEmpty());
  EXPECT_EQ(progress.state_of(2), ReadyState::kNone);
}

TEST(StepProgress, AFurtherMicroBatchReopensWhatWasReady) {
  const auto params = params_named({"a", "b"});
  StepProgress progress(params);
  progress.set(0, ReadyState::kReady);
  progress.reopen();
  EXPECT_EQ(progress.state_of(0), ReadyState::kAccumulated);
  EXPECT_EQ(progress.state_of(1), ReadyState::kNone);
  EXPECT_FALSE(progress.all_have_gradients());
  progress.set(1, ReadyState::kAccumulated);
  EXPECT_TRUE(progress.all_have_gradients());
}

TEST(StepProgress, TheFirstStepTellsHowOftenAParameterIsReached) {
  const auto params = params_named({"once", "twice"});
  StepProgress progress(params);
  EXPECT_TRUE(progress.is_first_step());
  EXPECT_FALSE(progress.count_reach(0));
  EXPECT_FALSE(progress.count_reach(1));
  EXPECT_FALSE(progress.count_reach(1));
  progress.expect_these_reaches();
  EXPECT_FALSE(progress.is_first_step());
  progress.reset();
  EXPECT_TRUE(progress.count_reach(0));
  EXPECT_FALSE(progress.count_reach(1));
  EXPECT_TRUE(progress.count_reach(1));
  // Later steps do not change the expectation.
  progress.expect_these_reaches();
  progress.reset();
  EXPECT_FALSE(progress.count_reach(1));
}

TEST(StepProgress, MissingGradientsAreNamedEightAtMost) {
  const auto params =
      params_named({"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"});
  StepProgress progress(params);
  progress.make_ready(0);
  EXPECT_THAT(
      [&] { progress.throw_if_missing(); },
      ThrowsMessage<UsageError>(
          HasSubstr("9 of 10 parameters got no gradient in this step: b, c, d, "
                    "e, f, g, h, i, ...")));
  for (int param = 1; param < 10; ++param)
    progress.make_ready(param);
  EXPECT_NO_THROW(progress.throw_if_missing());
}

}  // namespace
}  // namespace brigade
