// Saves that ranks ask for, and when the run begins them.
#include <gtest/gtest.h>

#include <algorithm>

#include "brigade/run/checkpoint_folder.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

using Steps = std::vector<int64_t>;

class SaveRequests : public ::testing::Test {
 protected:
  SaveRequests() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {{"seq_length", 48}, {"total_train_steps", 9}};
    testing::write_file(folder_ / "run.json", config.dump());
  }
  // The steps of the checkpoints of a run of nine, whose saves end before the
  // next step. `asking`: the steps in which rank 0 asks.
  Steps saved_steps(
      int ranks,
      const testing::Arguments& overrides,
      const Steps& asking) {
    testing::Arguments all = {
        "distributed.dp_size=2",
        "checkpoint.async=false",
        "logging.run_dir=" + (folder_ / "run").string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    testing::train_as_threads(
        folder_ / "run.json", ranks, all, [&](int rank, int64_t step) {
          const bool asks =
              std::find(asking.begin(), asking.end(), step) != asking.end();
          return StepRequests{.save = rank == 0 && asks};
        });
    Steps steps;
    for (const auto& entry : list_checkpoints(folder_ / "run" / "checkpoints"))
      steps.push_back(entry.step);
    return steps;
  }

  testing::RunsFolder folder_;
};

TEST_F(SaveRequests, SaveTheStepInWhichTheyAreAgreed) {
  EXPECT_EQ(saved_steps(2, {}, {2, 5}), (Steps{2, 5, 9}));
}

// It may be older than that save: the run asks once more.
TEST_F(SaveRequests, AreSavedAStepLaterRightAfterASave) {
  EXPECT_EQ(saved_steps(2, {}, {2, 3}), (Steps{2, 4, 9}));
}

// Rank 0 is of the first stage, whose requests are agreed a step later: here
// after the save of step 5, which saves what was asked for.
TEST_F(SaveRequests, AreNotLostWhereASaveOvertakesThem) {
  testing::Arguments stages = {"distributed.pp_size=2"};
  EXPECT_EQ(saved_steps(4, stages, {2}), (Steps{3, 9}));
  stages.emplace_back("checkpoint.save_frequency=5");
  EXPECT_EQ(saved_steps(4, stages, {5}), (Steps{5, 7, 9}));
}

}  // namespace
}  // namespace brigade
