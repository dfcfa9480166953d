// Runs on several datasets whose weights change on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

class MixtureRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    first_ =
        testing::prepare_bytes(*folder_ / "first", testing::made_up_text(6000));
    second_ =
        testing::prepare_bytes(*folder_ / "second", std::string(9000, 'x'));
    auto config = testing::tiny_run("");
    config["dataset"] = {{"mixture", mixture({{{"step", 0}, {"weight", 1}}})}};
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 8},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  // The first dataset with weight 1, and the second.
  static json mixture(const json& second_weight) {
    return {
        {{"name", first_}, {"weight", 1}},
        {{"name", second_}, {"weight", second_weight}}};
  }
  static std::string override_with(const json& second_weight) {
    return "dataset.mixture=" + mixture(second_weight).dump();
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static ProgramResult train(const std::string& name, const Arguments& more) {
    return testing::run_program(
        testing::train_arguments(*folder_ / "run.json", run(name), more));
  }

  static testing::RunsFolder* folder_;
  static inline std::string first_;
  static inline std::string second_;
};

testing::RunsFolder* MixtureRun::folder_ = nullptr;

TEST_F(MixtureRun, ATableThatChangesLaterContinuesWhereItWas) {
  const json later = {
      {{"step", 4}, {"weight", 1}}, {{"step", 5}, {"weight", 9}}};
  ASSERT_EQ(train("whole", {override_with(later)}).exit_code, 0);
  // Without a change, up to step 4; then with it.
  ASSERT_EQ(
      train("constant", {override_with(1), "checkpoint.save_frequency=4"})
          .exit_code,
      0);
  const std::string load =
      "checkpoint.load_path=" + (run("constant") / "checkpoints/4").string();
  ProgramResult result = train("changed", {override_with(later), load});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto whole = losses_of(run("whole"));
  ASSERT_EQ(whole.size(), 8U);
  EXPECT_THAT(
      losses_of(run("changed")),
      ::testing::ElementsAreArray(whole.begin() + 4, whole.end()));
  // The second dataset is easier, and there is more of it from step 6 on.
  EXPECT_LT(whole.back(), losses_of(run("constant")).back());
  // What lies before may not change.
  result = train("refused", {override_with(2), load});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("dataset.mixture"));

  // 32 sequences: 8 of each in the first 4 steps; weights change at points of
  // the table alone here, so also in the fifth; then 1 in 10 of the first.
  const ProgramResult shown =
      testing::run_program({"inspect", run("whole").string()});
  EXPECT_THAT(
      shown.out,
      AllOf(
          HasSubstr(second_ + " (weight 1 to 9 by step)"),
          HasSubstr(first_ + ": 11 windows seen"),
          HasSubstr(" epochs), 11 in the whole run ("),
          HasSubstr(second_ + ": 21 windows seen")))
      << shown.err;
}

TEST_F(MixtureRun, EachPartHasAnEvaluationLossOfItsOwn) {
  ASSERT_EQ(
      train(
          "parts",
          {override_with(1),
           "training.eval_every=8",
           "training.eval_steps=1",
           "dataset.eval_parts=true"})
          .exit_code,
      0);
  const auto steps = testing::read_metrics(run("parts"));
  ASSERT_EQ(steps.size(), 8U);
  const json& losses = steps.back().at("part_eval_losses");
  ASSERT_EQ(losses.size(), 2U);
  // What repeats one letter is learned at once.
  EXPECT_LT(losses.at(second_).get<double>(), losses.at(first_).get<double>());
  EXPECT_FALSE(steps.front().contains("part_eval_losses"));
  // The same as of a run that holds out the same part of that one dataset.
  const double together = steps.back().at("eval_loss").get<double>();
  EXPECT_NEAR(
      together,
      (losses.at(first_).get<double>() + losses.at(second_).get<double>()) / 2,
      0.5 * losses.at(first_).get<double>());
}

TEST_F(MixtureRun, NamesInvalidWeightTables) {
  EXPECT_THAT(
      train(
          "order",
          {override_with(
              {{{"step", 5}, {"weight", 1}}, {{"step", 5}, {"weight", 2}}})})
          .err,
      HasSubstr("ascending"));
  EXPECT_THAT(
      train("negative", {override_with({{{"step", 5}, {"weight", -1}}})}).err,
      HasSubstr("a number >= 0"));
  const ProgramResult dry = train(
      "dry",
      {"--dry-run",
       override_with(
           {{{"tokens", 0}, {"weight", 1}},
            {{"tokens", 768}, {"weight", 3}}})});
  EXPECT_THAT(dry.out, HasSubstr(" in the whole run (")) << dry.err;
}

}  // namespace
}  // namespace brigade
