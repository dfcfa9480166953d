// Runs on packed documents, over resume and change of layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/run/dry_run.h"
#include "brigade/train/trainer.h"
#include "tests/support/message_of.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::losses_of;

class PackingRun : public ::testing::Test {
 protected:
  PackingRun() {
    // Sentences, a document each: 35 tokens on average, and some longer than
    // a sequence. Eight steps of four sequences are more than two epochs.
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens",
        testing::made_up_text(700),
        {"--document-separator", ". "}));
    config["dataset"]["packing"] = "best_fit";
    config["dataset"]["long_documents"] = "cut";
    config["dataset"]["shuffle"] = true;
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 2},
        {"gradient_accumulation_steps", 2},
        {"total_train_steps", 8},
        {"learning_rate", 5e-3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }
  void train(
      const std::string& name,
      int ranks,
      std::vector<std::string> overrides) const {
    overrides.push_back("logging.run_dir=" + run(name).string());
    testing::train_as_threads(folder_ / "run.json", ranks, overrides);
  }
  fs::path run(const std::string& name) const { return folder_ / name; }

  testing::RunsFolder folder_;
};

TEST_F(PackingRun, ContinuesWithTheNextSequenceUnderAnyLayout) {
  train("whole", 1, {});
  const auto whole = losses_of(run("whole"));
  ASSERT_EQ(whole.size(), 8U);
  train("half", 1, {"training.total_train_steps=4"});
  const std::string load =
      "checkpoint.load_path=" + (run("half") / "checkpoints/4").string();
  const std::vector<double> rest(whole.begin() + 4, whole.end());
  train("same", 1, {load});
  EXPECT_THAT(losses_of(run("same")), ElementsAreArray(rest));
  train(
      "dp", 2, {load, "distributed.dp_size=2", "training.micro_batch_size=1"});
  EXPECT_LT(
      testing::largest_relative_difference(losses_of(run("dp")), rest), 1e-5);
  train("cp", 2, {load, "distributed.cp_size=2"});
  EXPECT_LT(
      testing::largest_relative_difference(losses_of(run("cp")), rest), 1e-5);
  // The data is seen: sequences of another order have other losses.
  train(
      "other",
      1,
      {load,
       "training.seed=2",
       R"(checkpoint.allow_changes=["training.seed"])"});
  EXPECT_GT(
      testing::largest_relative_difference(losses_of(run("other")), rest),
      1e-3);
}

TEST_F(PackingRun, EachStepSaysHowManyTokensCounted) {
  train("counts", 1, {});
  int64_t in_all = 0;
  for (const auto& step : testing::read_metrics(run("counts"))) {
    const auto counted = step.at("loss_tokens").get<int64_t>();
    EXPECT_LE(counted, 4 * 48);
    in_all += counted;
  }
  EXPECT_GT(in_all, 8 * 4 * 48 / 2);
  EXPECT_LT(in_all, 8 * 4 * 48);
}

TEST_F(PackingRun, ADryRunSaysHowFullSequencesAre) {
  const TrainConfig config =
      load_train_config(
          {.path = folder_ / "run.json",
           .overrides = {{"logging.run_dir=" + run("dry").string()}},
           .world_size = 1,
           .find_model = {}})
          .config;
  const std::string text = describe_dry_run(config, {});
  EXPECT_THAT(text, HasSubstr("\npacking     "));
  EXPECT_THAT(text, HasSubstr(" longer than a sequence cut"));
}

TEST_F(PackingRun, AnotherPackingIsAnotherRun) {
  train("first", 1, {"training.total_train_steps=1"});
  const std::string load =
      "checkpoint.load_path=" + (run("first") / "checkpoints/1").string();
  for (const std::string change :
       {"dataset.long_documents=split", "training.seq_length=40"}) {
    EXPECT_THAT(
        message_of<std::exception>([&] {
          train("second", 1, {load, change});
        }),
        HasSubstr(change.substr(0, change.find('='))));
  }
}

}  // namespace
}  // namespace brigade
