// Every optimizer trains, under every layout, what it trains on one rank, and a
// run goes on from its checkpoints.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Overrides = std::vector<std::string>;

struct OptimizerCase {
  std::string name;
  Overrides overrides;
};

void PrintTo(const OptimizerCase& each, std::ostream* out) {
  *out << each.name;
}

struct LayoutOfRun {
  int ranks;
  Overrides overrides;
};

std::string override_of(const char* key, int value) {
  return fmt::format("distributed.{}={}", key, value);
}

const std::vector<LayoutOfRun> kLayouts = {
    {2, {override_of("dp_size", 2)}},
    {2, {override_of("dp_size", 2), override_of("zero_stage", 1)}},
    {3,
     {override_of("dp_size", 1),
      override_of("cp_size", 3),
      override_of("zero_stage", 2)}},
    {2, {override_of("dp_size", 2), override_of("zero_stage", 3)}},
    {4, {override_of("tp_size", 4)}},
    {2, {override_of("pp_size", 2)}},
    {4,
     {override_of("dp_size", 2),
      override_of("tp_size", 2),
      override_of("zero_stage", 2)}},
    {4,
     {override_of("pp_size", 2),
      override_of("tp_size", 2),
      override_of("cp_size", 1)}}};

class Optimizers : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  Optimizers() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    config["model"]["dtype"] = "float32";
    config["training"]["total_train_steps"] = kSteps;
    config["training"]["micro_batch_size"] = 1;
    config["training"]["gradient_accumulation_steps"] = 4;
    config["training"]["grad_clip"] = 0.5;
    config["training"]["eval_every"] = 3;
    config["training"]["eval_steps"] = 1;
    config["dataset"]["eval_fraction"] = 0.2;
    config["distributed"]["bucket_cap_mb"] = 0.04;
    testing::write_file(folder_ / "run.json", config.dump());
  }

  fs::path run(const std::string& name) { return folder_ / name; }
  fs::path checkpoint(const std::string& name, int step) {
    return run(name) / "checkpoints" / std::to_string(step);
  }
  void train(
      const std::string& name,
      const LayoutOfRun& layout,
      const Overrides& more = {}) {
    Overrides overrides = GetParam().overrides;
    overrides.insert(
        overrides.end(), layout.overrides.begin(), layout.overrides.end());
    overrides.insert(overrides.end(), more.begin(), more.end());
    overrides.push_back("logging.run_dir=" + run(name).string());
    testing::train_as_threads(folder_ / "run.json", layout.ranks, overrides);
  }
  // The layout with as many sequences per step as one rank has.
  static LayoutOfRun with_batch(LayoutOfRun layout) {
    for (const std::string& text : layout.overrides) {
      if (text == override_of("dp_size", 2))
        layout.overrides.emplace_back("training.gradient_accumulation_steps=2");
    }
    return layout;
  }
  static std::vector<double> eval_losses(const fs::path& run) {
    std::vector<double> losses;
    for (const auto& line : testing::read_metrics(run)) {
      if (line.contains("eval_loss") && line["eval_loss"].is_number())
        losses.push_back(line["eval_loss"]);
    }
    return losses;
  }
  // The largest difference of a tensor, relative to its norm.
  static double difference(const fs::path& a, const fs::path& b) {
    const Checkpoint first(a);
    const Checkpoint second(b);
    EXPECT_EQ(first.names(), second.names());
    double largest = 0;
    for (const std::string& name : first.names()) {
      const torch::Tensor x = first.read_whole(name).to(torch::kDouble);
      const torch::Tensor y = second.read_whole(name).to(torch::kDouble);
      const double norm = std::max(1e-12, y.norm().item<double>());
      largest = std::max(largest, (x - y).norm().item<double>() / norm);
    }
    return largest;
  }

  static constexpr int kSteps = 6;
  testing::RunsFolder folder_;
};

TEST_P(Optimizers, TrainUnderEveryLayoutWhatOneRankTrains) {
  train("one", {1, {}});
  const auto expected = testing::losses_of(run("one"));
  const auto expected_eval = eval_losses(run("one"));
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(expected_eval.size(), 2U);
  EXPECT_LT(expected.back(), expected.front());
  for (size_t i = 0; i < kLayouts.size(); ++i) {
    const std::string name = std::to_string(i);
    train(name, with_batch(kLayouts[i]));
    EXPECT_LT(
        testing::largest_relative_difference(
            testing::losses_of(run(name)), expected),
        1e-5)
        << "layout " << i;
    EXPECT_LT(
        testing::largest_relative_difference(
            eval_losses(run(name)), expected_eval),
        1e-5)
        << "layout " << i;
    EXPECT_LT(
        difference(checkpoint(name, kSteps), checkpoint("one", kSteps)), 2e-3)
        << "layout " << i;
  }
}

TEST_P(Optimizers, ContinueBitForBitAndCloselyUnderAnotherLayout) {
  const LayoutOfRun layout = with_batch(kLayouts[6]);
  train("whole", layout, {"checkpoint.save_frequency=3"});
  const std::string from =
      "checkpoint.load_path=" + checkpoint("whole", 3).string();
  train("continued", layout, {from});
  EXPECT_EQ(
      difference(checkpoint("continued", kSteps), checkpoint("whole", kSteps)),
      0);
  for (const LayoutOfRun& other : {LayoutOfRun{1, {}}, kLayouts[4]}) {
    train("other", other, {from});
    EXPECT_LT(
        difference(checkpoint("other", kSteps), checkpoint("whole", kSteps)),
        2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    Optimizers,
    ::testing::Values(
        OptimizerCase{
            "muon",
            {"training.optimizer=muon",
             "training.learning_rate=2e-3",
             "training.muon_dtype=float32"}},
        OptimizerCase{
            "sgd",
            {"training.optimizer=sgd",
             "training.sgd_momentum=0.9",
             "training.learning_rate=0.1"}},
        OptimizerCase{
            "schedule_free",
            {"training.optimizer=schedule_free_adamw",
             "training.warmup_steps=2",
             "training.learning_rate=5e-3"}},
        OptimizerCase{
            "moving_average",
            {"training.ema_decay=0.9", "training.learning_rate=1e-3"}},
        OptimizerCase{
            "mup",
            {"training.parametrization=mup",
             "training.mup_base_hidden_size=16",
             "training.mup_base_head_dim=4",
             "training.learning_rate=5e-3"}},
        OptimizerCase{
            "muon_mup",
            {"training.optimizer=muon",
             "training.muon_dtype=float32",
             "training.parametrization=mup",
             "training.mup_base_hidden_size=16",
             "training.learning_rate=2e-3"}},
        OptimizerCase{
            "schedule_free_mup",
            {"training.optimizer=schedule_free_adamw",
             "training.parametrization=mup",
             "training.mup_base_hidden_size=16",
             "training.learning_rate=5e-3"}}),
    [](const auto& each) { return each.param.name; });

class ContinuedOptimizers : public Optimizers {};

TEST_P(ContinuedOptimizers, HaveTheBitsOfAnUndisturbedRun) {
  for (const size_t layout : {0, 3, 6}) {
    const bool is_sharded = layout != 0;
    if (is_sharded && GetParam().name == "muon_in_groups")
      continue;
    const std::string name = std::to_string(layout);
    const LayoutOfRun of_run = with_batch(kLayouts[layout]);
    train(name, of_run, {"checkpoint.save_frequency=3"});
    train(
        name + "-continued",
        of_run,
        {"checkpoint.load_path=" + checkpoint(name, 3).string()});
    EXPECT_EQ(
        difference(
            checkpoint(name + "-continued", kSteps), checkpoint(name, kSteps)),
        0)
        << "layout " << layout;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    ContinuedOptimizers,
    ::testing::Values(
        OptimizerCase{
            "muon_bf16",
            {"training.optimizer=muon", "model.dtype=bfloat16"}},
        OptimizerCase{
            "muon_in_groups",
            {"training.optimizer=muon", "distributed.local_steps=2"}},
        OptimizerCase{
            "sgd_bf16",
            {"training.optimizer=sgd",
             "training.sgd_momentum=0.9",
             "model.dtype=bfloat16"}},
        OptimizerCase{
            "schedule_free_bf16",
            {"training.optimizer=schedule_free_adamw", "model.dtype=bfloat16"}},
        OptimizerCase{
            "moving_average_bf16",
            {"training.ema_decay=0.9", "model.dtype=bfloat16"}}),
    [](const auto& each) { return each.param.name; });

// A run without a moving average, or with another optimizer, goes on from the
// weights that were trained, not from their average.
class AfterAMovingAverage : public Optimizers {};

TEST_P(AfterAMovingAverage, GoesOnFromTheWeights) {
  train("averaged", {1, {}}, {"training.ema_decay=0.9"});
  const Checkpoint averaged(checkpoint("averaged", kSteps));
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const torch::Tensor trained = averaged.read_whole("master." + name);
  ASSERT_FALSE(torch::equal(averaged.read_whole(name), trained));
  for (const char* change :
       {"training.ema_decay=0", "training.optimizer=muon"}) {
    SCOPED_TRACE(change);
    train(
        change,
        {1, {}},
        {"checkpoint.load_path=" + checkpoint("averaged", kSteps).string(),
         "checkpoint.allow_changes=[\"training.optimizer\"]",
         "training.total_train_steps=" + std::to_string(kSteps + 1),
         "training.learning_rate=1e-30",
         change});
    const torch::Tensor weight =
        Checkpoint(checkpoint(change, kSteps + 1)).read_whole(name);
    // A bf16 weight is its master rounded.
    EXPECT_TRUE(torch::equal(weight, trained.to(weight.scalar_type())));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    AfterAMovingAverage,
    ::testing::Values(
        OptimizerCase{"adamw", {}},
        OptimizerCase{"adamw_bf16", {"model.dtype=bfloat16"}},
        OptimizerCase{"sgd", {"training.optimizer=sgd"}}),
    [](const auto& each) { return each.param.name; });

class OtherOptimizer : public Optimizers {};

TEST_P(OtherOptimizer, IsRefusedInACheckpointUnlessAllowed) {
  train("first", {1, {}}, {"training.optimizer=adamw"});
  const std::string from =
      "checkpoint.load_path=" + checkpoint("first", kSteps).string();
  const Overrides on = {
      "training.optimizer=" + GetParam().name,
      "training.total_train_steps=8",
      from};
  EXPECT_THAT(
      [&] {
        train("refused", {1, {}}, on);
      },
      ThrowsMessage<ConfigError>(HasSubstr(
          "training.optimizer: \"adamw\" when saved, \"" + GetParam().name +
          "\" now")));
  Overrides allowed = on;
  allowed.emplace_back("checkpoint.allow_changes=[\"training.optimizer\"]");
  allowed.emplace_back("checkpoint.save_frequency=7");
  train("allowed", {1, {}}, allowed);
  // Its states are new ones, and later runs go on from them.
  Overrides later = on;
  later.back() = "checkpoint.load_path=" + checkpoint("allowed", 7).string();
  train("later", {1, {}}, later);
  EXPECT_EQ(difference(checkpoint("later", 8), checkpoint("allowed", 8)), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OtherOptimizer,
    ::testing::Values(
        OptimizerCase{"muon", {}},
        OptimizerCase{"sgd", {}},
        OptimizerCase{"schedule_free_adamw", {}}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
