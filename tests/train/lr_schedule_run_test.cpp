// The learning rate of a whole run: where it ends, with max_tokens and without,
// and what a run that is continued keeps.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "brigade/run/manifest.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

constexpr int kScheduleSteps = 8;
constexpr int kWarmupSteps = 2;
constexpr int kStepTokens = 8 * 48;
constexpr double kPeakRate = 5e-3;

class LrScheduleRun : public ::testing::Test {
 protected:
  LrScheduleRun() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 8},
        {"total_train_steps", kScheduleSteps},
        {"learning_rate", kPeakRate},
        {"lr_schedule", "cosine"},
        {"warmup_steps", kWarmupSteps}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  fs::path run(const std::string& name) const { return folder_ / name; }
  fs::path checkpoint(const std::string& name, int step) const {
    return run(name) / "checkpoints" / std::to_string(step);
  }
  ProgramResult train(const std::string& name, const Arguments& more) const {
    ProgramResult result = testing::run_program(
        testing::train_arguments(folder_ / "run.json", run(name), more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::vector<double> rates(const std::string& name) const {
    std::vector<double> all;
    for (const auto& line : testing::read_metrics(run(name)))
      all.push_back(line.at("lr").get<double>());
    return all;
  }

  testing::RunsFolder folder_;
};

// After the warm-up half a cosine, of which step `begin` is at the peak and
// step `end` at 0.
std::vector<double> cosine_rates(int begin, int end) {
  std::vector<double> all;
  for (int step = 1; step <= kScheduleSteps; ++step) {
    const double angle = std::acos(-1.0) * (step - begin) / (end - begin);
    all.push_back(
        step <= kWarmupSteps ? kPeakRate * step / kWarmupSteps
                             : kPeakRate * 0.5 * (1 + std::cos(angle)));
  }
  return all;
}

// What older versions saved: a config without training.lr_end.
void as_older_versions_saved(const fs::path& checkpoint) {
  CheckpointManifest manifest = read_manifest(checkpoint);
  manifest.config.at("training").erase("lr_end");
  testing::write_file(checkpoint / kManifestFile, manifest_to_text(manifest));
}

TEST_F(LrScheduleRun, MaxTokensIsALimitAndTheScheduleEndsWithTheRun) {
  train("five", {"training.total_train_steps=5"});
  for (const int tokens : {5 * kStepTokens, 6 * kStepTokens - 1}) {
    const std::string name = fmt::format("limit_{}", tokens);
    const ProgramResult result = train(
        name,
        {"training.total_train_steps=1000",
         fmt::format("training.max_tokens={}", tokens)});
    EXPECT_THAT(result.out, HasSubstr("Step: 5/5 "));
    EXPECT_EQ(
        testing::read_metrics(run(name)).back().at("tokens"), 5 * kStepTokens);
    EXPECT_EQ(rates(name), rates("five"));
    EXPECT_EQ(losses_of(run(name)), losses_of(run("five")));
    const ProgramResult again = train(
        name,
        {"training.total_train_steps=1000",
         fmt::format("training.max_tokens={}", tokens),
         "checkpoint.load_path=auto"});
    EXPECT_THAT(
        again.out,
        HasSubstr("step 5 of 5; raise training.total_train_steps or "
                  "training.max_tokens to go on"));
  }
  const ProgramResult shown =
      testing::run_program({"inspect", run("limit_1920").string()});
  EXPECT_THAT(shown.out, HasSubstr("5 of 5 steps"));
}

// The batch changes on the way: three steps of 384 tokens, then of 192.
TEST_F(LrScheduleRun, MaxTokensCountsWhatWasTrainedBefore) {
  train("batches", {"training.total_train_steps=3"});
  const ProgramResult result = train(
      "batches",
      {"training.total_train_steps=1000",
       "training.micro_batch_size=4",
       fmt::format("training.max_tokens={}", 5 * kStepTokens),
       "checkpoint.load_path=auto"});
  const auto metrics = testing::read_metrics(run("batches"));
  EXPECT_EQ(metrics.size(), 7U);
  EXPECT_EQ(metrics.back().at("tokens"), 5 * kStepTokens);
  EXPECT_GT(metrics.back().at("lr"), 0);
  EXPECT_THAT(result.out, HasSubstr("Step: 7/7 "));
}

// Three steps of 384 tokens, then of 192: the table goes on where it was.
TEST_F(LrScheduleRun, ATableByTokensCountsWhatWasTrainedBefore) {
  const Arguments table = {
      "training.lr_schedule=table",
      "training.warmup_steps=0",
      R"(training.lr_table=[{"tokens": 0, "factor": 0}, )"
      R"({"tokens": 1920, "factor": 1}])"};
  const auto with_table = [&](Arguments more) {
    more.insert(more.end(), table.begin(), table.end());
    return more;
  };
  train("table", with_table({"training.total_train_steps=3"}));
  train(
      "table",
      with_table(
          {"training.total_train_steps=6",
           "training.micro_batch_size=4",
           "checkpoint.load_path=auto"}));
  const std::vector<double> found = rates("table");
  const std::vector<double> fifths = {0, 1, 2, 3, 3.5, 4};
  ASSERT_EQ(found.size(), fifths.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], kPeakRate * fifths[i] / 5, 1e-15) << i + 1;
}

TEST_F(LrScheduleRun, TheRunEndsBeforeTheRateIsZero) {
  train("new", {});
  const std::vector<double> expected =
      cosine_rates(kWarmupSteps + 1, kScheduleSteps + 1);
  const std::vector<double> found = rates("new");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-15) << "step " << i + 1;
  EXPECT_GT(found.back(), 0);
}

TEST_F(LrScheduleRun, AContinuedRunKeepsTheScheduleItWasSavedWith) {
  const Arguments save = {"checkpoint.save_frequency=2"};
  Arguments as_before = save;
  as_before.emplace_back("training.lr_end=at_total_train_steps");
  train("whole", as_before);
  const std::vector<double> expected =
      cosine_rates(kWarmupSteps, kScheduleSteps);
  const std::vector<double> found = rates("whole");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], 1e-15) << "step " << i + 1;

  fs::copy(run("whole"), run("old"), fs::copy_options::recursive);
  for (const int later : {6, 8})
    fs::remove_all(checkpoint("old", later));
  as_older_versions_saved(checkpoint("old", 4));
  Arguments resume = save;
  resume.emplace_back("checkpoint.load_path=auto");
  train("old", resume);
  EXPECT_EQ(rates("old"), found);
  EXPECT_EQ(losses_of(run("old")), losses_of(run("whole")));
  // And so does the run that continues the continued one.
  fs::remove_all(checkpoint("old", 8));
  train("old", resume);
  EXPECT_EQ(rates("old"), found);
  EXPECT_EQ(
      testing::tensor_bytes(checkpoint("old", 8) / "model.safetensors"),
      testing::tensor_bytes(checkpoint("whole", 8) / "model.safetensors"));
}

}  // namespace
}  // namespace brigade
