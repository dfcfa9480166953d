// Saves that ranks ask for, and when the run begins them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

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

// What rank 0 sees of evaluations after every second step, each of 20 batches
// unless overridden.
class StopRequests : public SaveRequests {
 protected:
  // Rank 0 asks to stop once step `step` has begun `batches` batches of its
  // evaluation.
  void
  stop(int ranks, testing::Arguments overrides, int64_t step, int batches) {
    overrides.insert(
        overrides.begin(),
        {"training.eval_every=2",
         "training.eval_steps=20",
         "dataset.eval_fraction=0.5",
         "logging.run_dir=" + (folder_ / "run").string()});
    begun_.clear();
    testing::train_as_threads(
        folder_ / "run.json",
        ranks,
        overrides,
        [&](int rank, int64_t current) {
          const bool asks =
              rank == 0 && current == step && begun_[current] > batches;
          return StepRequests{.stop = asks};
        },
        [&](int rank, int64_t current) {
          if (rank == 0)
            ++begun_[current];
        });
  }
  Steps saved() const {
    Steps steps;
    for (const auto& entry : list_checkpoints(folder_ / "run" / "checkpoints"))
      steps.push_back(entry.step);
    return steps;
  }
  // The steps that have a loss on held-out text.
  Steps evaluated() const {
    Steps steps;
    for (const auto& line : testing::read_metrics(folder_ / "run")) {
      if (line.contains("eval_loss"))
        steps.push_back(line.at("step"));
    }
    return steps;
  }

  std::map<int64_t, int> begun_;  // how often a step's time began, on rank 0
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

TEST_F(StopRequests, EachBatchOfAnEvaluationHasTheTimeOfAStep) {
  stop(1, {"training.total_train_steps=4"}, -1, 0);
  EXPECT_EQ(begun_, (std::map<int64_t, int>{{1, 1}, {2, 21}, {3, 1}, {4, 22}}));
  EXPECT_EQ(evaluated(), (Steps{2, 4}));
}

TEST_F(StopRequests, AreHeardBetweenTheBatchesOfAnEvaluation) {
  struct Layout {
    int ranks;
    testing::Arguments overrides;
  };
  for (const Layout& layout : std::vector<Layout>{
           {1, {}},
           {2, {"distributed.dp_size=2"}},
           {2, {"distributed.tp_size=2"}},
           {4, {"distributed.pp_size=4"}}}) {
    SCOPED_TRACE(layout.ranks);
    stop(layout.ranks, layout.overrides, 4, 5);
    EXPECT_EQ(saved(), Steps{4});
    EXPECT_EQ(evaluated(), Steps{2});
    // The step, five batches, one in which all hear of it, and the end.
    EXPECT_EQ(begun_.at(4), 1 + 5 + 1 + 1);
  }
}

TEST_F(StopRequests, AreHeardBetweenEvaluationsOfOneBatch) {
  const auto part = [&](const char* name) {
    return nlohmann::json{
        {"name",
         testing::prepare_bytes(folder_ / name, testing::made_up_text(6000))}};
  };
  stop(
      1,
      {"training.eval_steps=1",
       "dataset.name=",
       "dataset.mixture=" +
           nlohmann::json{part("a"), part("b"), part("c")}.dump(),
       "dataset.eval_parts=true"},
      4,
      1);
  EXPECT_EQ(saved(), Steps{4});
  EXPECT_EQ(evaluated(), (Steps{2, 4}));
  // The step, the batch of the whole, none of its parts, and the end.
  EXPECT_EQ(begun_.at(4), 1 + 1 + 1);
}

TEST_F(StopRequests, LeaveOutTheEvaluationOfTheLastStep) {
  stop(1, {}, 2, 0);
  EXPECT_EQ(saved(), Steps{2});
  EXPECT_EQ(begun_.at(2), 1 + 1);
  EXPECT_TRUE(evaluated().empty());
}

}  // namespace
}  // namespace brigade
