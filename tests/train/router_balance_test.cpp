// What a router does over the choices of a whole global batch: the balance loss
// over the last step's, and the bias that each step moves. Both are the same
// however the batch is divided, and go on where a run is continued.
#include "brigade/train/router_balance.h"

#include <gtest/gtest.h>

#include <cmath>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/run/run_options.h"
#include "brigade/train/from_config.h"
#include "brigade/train/train_step.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Arguments;

constexpr int kBalanceSteps = 4;
constexpr int kGlobalSequences = 8;  // of a step
constexpr double kBiasRate = 0.01;

TEST(RouterBias, MovesByTheRateTowardsTheMean) {
  const auto update = [](std::vector<int64_t> choices) {
    const torch::Tensor moved = bias_update(choices, 0.5);
    return std::vector<float>(
        moved.data_ptr<float>(), moved.data_ptr<float>() + moved.numel());
  };
  EXPECT_EQ(update({10, 2, 2, 2}), (std::vector<float>{-0.5, 0.5, 0.5, 0.5}));
  EXPECT_EQ(update({4, 4, 3, 5}), (std::vector<float>{0, 0, 0.5, -0.5}));
  EXPECT_EQ(update({0, 0}), (std::vector<float>{0, 0}));
}

// A batch that is divided among ranks, stages and micro-batches.
struct DividedBatch {
  std::string name;
  int ranks = 1;
  int in_micro_batch = kGlobalSequences;  // sequences of a rank
  Arguments overrides = {};
};

void PrintTo(const DividedBatch& each, std::ostream* out) {
  *out << each.name;
}

class RouterBalanceLayouts : public ::testing::TestWithParam<DividedBatch> {
 protected:
  RouterBalanceLayouts() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(20000)));
    auto& model = config["model"];
    model["config"] = testing::with_experts(model["config"]);
    config["training"]["total_train_steps"] = kBalanceSteps;
    // An evaluation neither counts nor moves anything.
    config["training"]["eval_every"] = 2;
    config["training"]["eval_steps"] = 1;
    config["training"]["learning_rate"] = 1e-3;
    config["training"]["adam_eps"] = 1e-5;
    config["training"]["router_aux_loss"] = 0.5;
    config["training"]["router_aux_loss_over"] = "global_batch";
    config["training"]["router_bias_rate"] = kBiasRate;
    testing::write_file(folder_ / "run.json", config.dump());
  }

  // Its lines of metrics.
  std::vector<json> train(const DividedBatch& batch, Arguments more = {}) {
    Arguments overrides = batch.overrides;
    overrides.push_back("logging.run_dir=" + run_.string());
    overrides.push_back(
        "training.micro_batch_size=" + std::to_string(batch.in_micro_batch));
    overrides.insert(overrides.end(), more.begin(), more.end());
    testing::train_as_threads(folder_ / "run.json", batch.ranks, overrides);
    return testing::read_metrics(run_);
  }

  // The bias [E] of each layer with experts in the last checkpoint.
  std::vector<torch::Tensor> biases() const {
    const Checkpoint saved(
        run_ / "checkpoints" / std::to_string(kBalanceSteps));
    std::vector<torch::Tensor> result;
    for (const int layer : {1, 2, 3})
      result.push_back(saved.read_whole(
          "model.layers." + std::to_string(layer) +
          ".mlp.gate.e_score_correction_bias"));
    return result;
  }

  // What the counts of `steps` move the bias of a layer to, of steps in which
  // every token has a loss.
  static torch::Tensor moved_by_counts(
      const std::vector<json>& steps,
      size_t layer) {
    std::vector<float> expected(8);
    for (const json& step : steps) {
      const auto counts =
          step["experts"]["tokens_per_expert"][layer].get<std::vector<int>>();
      for (size_t e = 0; e < counts.size(); ++e) {
        const int mean = kGlobalSequences * 48 * 3 / 8;
        const float sign = counts[e] < mean ? 1.0F : -1.0F;
        if (counts[e] != mean)
          expected[e] += sign * static_cast<float>(kBiasRate);
      }
    }
    return torch::tensor(expected);
  }

  testing::RunsFolder folder_;
  const fs::path run_ = folder_ / "run";
};

TEST_P(RouterBalanceLayouts, HaveOneRanksBiases) {
  const auto one = train({.name = "one"});
  const auto of_one = biases();
  const auto many = train(GetParam());
  const auto of_many = biases();
  ASSERT_EQ(one.size(), size_t{kBalanceSteps});
  ASSERT_EQ(many.size(), one.size());
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_EQ(
        many[step]["experts"]["tokens_per_expert"],
        one[step]["experts"]["tokens_per_expert"])
        << step;
    for (const char* key : {"loss", "grad_norm"}) {
      const auto expected = one[step][key].get<double>();
      EXPECT_NEAR(many[step][key].get<double>(), expected, 2e-5 * expected)
          << key << " of step " << step;
    }
  }
  for (size_t layer = 0; layer < of_one.size(); ++layer)
    EXPECT_TRUE(torch::equal(of_many[layer], of_one[layer])) << layer;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    RouterBalanceLayouts,
    ::testing::Values(
        DividedBatch{
            "micro_batches_recomputed",
            1,
            1,
            {"training.gradient_accumulation_steps=8",
             "training.recompute=full"}},
        DividedBatch{
            "dp2_ep2_zero3",
            2,
            2,
            {"distributed.dp_size=2",
             "distributed.ep_size=2",
             "distributed.zero_stage=3",
             "training.gradient_accumulation_steps=2"}},
        DividedBatch{"cp2", 2, 8, {"distributed.cp_size=2"}},
        DividedBatch{
            "tp2_sp",
            2,
            8,
            {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
        DividedBatch{
            "dp2_pp2_zero1",
            4,
            1,
            {"distributed.dp_size=2",
             "distributed.pp_size=2",
             "distributed.zero_stage=1",
             "training.gradient_accumulation_steps=4"}}),
    [](const auto& each) { return each.param.name; });

using RouterBalanceRun = RouterBalanceLayouts;

// With even shares the loss is alpha whatever the scores are, so the first step
// has no gradient of it; later ones have.
TEST_F(RouterBalanceRun, BeginsWithTheSecondStep) {
  const auto with = train({.name = "with"});
  const auto without =
      train({.name = "without"}, {"training.router_aux_loss=0"});
  const auto norm = [](const std::vector<json>& steps, size_t step) {
    return steps[step]["grad_norm"].get<double>();
  };
  EXPECT_NEAR(norm(with, 0), norm(without, 0), 1e-6 * norm(without, 0));
  EXPECT_GT(std::abs(norm(with, 1) / norm(without, 1) - 1), 1e-4);
}

// Every token of these steps has a loss: the counts of metrics.jsonl are those
// that the bias is moved by.
TEST_F(RouterBalanceRun, MovesTheBiasByTheCountsOfEachStep) {
  const auto steps = train(
      {.name = "bfloat16"},
      {"model.dtype=bfloat16", "training.router_aux_loss=0"});
  const auto moved = biases();
  for (size_t layer = 0; layer < moved.size(); ++layer) {
    ASSERT_EQ(moved[layer].scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(moved[layer], moved_by_counts(steps, layer)))
        << layer;
  }
}

// Groups that train apart count together, so that all have one bias.
TEST_F(RouterBalanceRun, GroupsThatTrainApartMoveItByTheCountsOfAll) {
  const DividedBatch groups{
      .name = "dp4_in_2_ep2",
      .ranks = 4,
      .in_micro_batch = 2,
      .overrides = {
          "distributed.dp_size=4",
          "distributed.ep_size=2",
          "distributed.local_groups=2",
          "distributed.local_steps=2",
          "checkpoint.save_frequency=1"}};
  const auto steps = train(groups);
  const auto moved = biases();
  for (size_t layer = 0; layer < moved.size(); ++layer)
    EXPECT_TRUE(torch::equal(moved[layer], moved_by_counts(steps, layer)))
        << layer;
  train(
      groups,
      {"checkpoint.load_path=" + (run_ / "checkpoints" / "3").string()});
  EXPECT_EQ(testing::read_metrics(run_).back()["loss"], steps.back()["loss"]);
  const auto continued = biases();
  for (size_t layer = 0; layer < moved.size(); ++layer)
    EXPECT_TRUE(torch::equal(continued[layer], moved[layer])) << layer;
}

// Muon puts each expert's matrices together among the ranks of its stage.
TEST_F(RouterBalanceRun, DividedExpertsAreSteppedByMuon) {
  const Arguments muon{
      "training.optimizer=muon",
      "training.muon_dtype=float32",
      "training.router_bias_rate=0"};
  const auto one = train({.name = "one"}, muon);
  for (const char* zero_stage : {"0", "2"}) {
    const auto many = train(
        {.name = "dp2_ep2_tp2",
         .ranks = 4,
         .in_micro_batch = 4,
         .overrides =
             {"distributed.dp_size=2",
              "distributed.ep_size=2",
              "distributed.tp_size=2",
              std::string("distributed.zero_stage=") + zero_stage}},
        muon);
    ASSERT_EQ(many.size(), one.size());
    for (size_t step = 0; step < one.size(); ++step) {
      const auto expected = one[step]["loss"].get<double>();
      EXPECT_NEAR(many[step]["loss"].get<double>(), expected, 2e-5 * expected)
          << "step " << step << ", stage " << zero_stage;
    }
  }
}

TEST_F(RouterBalanceRun, GoesOnWhereARunIsContinued) {
  const auto whole = train({.name = "whole"});
  const auto of_whole = biases();
  train(
      {.name = "half",
       .ranks = 2,
       .in_micro_batch = 4,
       .overrides =
           {"distributed.dp_size=2",
            "distributed.ep_size=2",
            "distributed.zero_stage=3"}},
      {"training.total_train_steps=2"});
  testing::train_as_threads(
      folder_ / "run.json",
      1,
      {"logging.run_dir=" + run_.string(),
       "checkpoint.load_path=" + (run_ / "checkpoints" / "2").string(),
       "training.micro_batch_size=" + std::to_string(kGlobalSequences)});
  const auto continued = testing::read_metrics(run_);
  ASSERT_EQ(continued.size(), whole.size());
  for (size_t step = 0; step < whole.size(); ++step) {
    const auto expected = whole[step]["grad_norm"].get<double>();
    EXPECT_NEAR(
        continued[step]["grad_norm"].get<double>(), expected, 2e-5 * expected)
        << step;
  }
  const auto of_both = biases();
  for (size_t layer = 0; layer < of_whole.size(); ++layer)
    EXPECT_TRUE(torch::equal(of_both[layer], of_whole[layer])) << layer;
}

// The first two-dtype flat memory of the trainer: float32 biases beside
// bfloat16 weights, divided by ZeRO.
TEST_F(RouterBalanceRun, KeepsTheBiasInFloat32UnderEverySharding) {
  train({.name = "one"}, {"model.dtype=bfloat16", "training.eval_every=0"});
  const auto of_one = biases();
  for (const char* stage : {"1", "2", "3"}) {
    train(
        {.name = "dp2", .ranks = 2, .in_micro_batch = 4},
        {"model.dtype=bfloat16",
         "training.eval_every=0",
         "distributed.dp_size=2",
         std::string("distributed.zero_stage=") + stage});
    const auto of_two = biases();
    for (size_t layer = 0; layer < of_one.size(); ++layer) {
      ASSERT_EQ(of_two[layer].scalar_type(), torch::kFloat);
      // Steps of 0.01, as many as there were; a choice near a tie may differ.
      const torch::Tensor steps = of_two[layer] / kBiasRate;
      EXPECT_TRUE(torch::allclose(steps, steps.round(), 0, 1e-3)) << layer;
      EXPECT_LE(steps.abs().max().item<double>(), kBalanceSteps + 1e-3);
      EXPECT_GT(steps.abs().max().item<double>(), 0.5);
    }
  }
}

// A bias that stays as it is needs no counts, unless the balance loss does.
TEST_F(RouterBalanceRun, ARateOfZeroCountsNoChoices) {
  const auto config_with = [&](const Arguments& keys) {
    LoadOptions options{
        .path = folder_ / "run.json",
        .overrides = {},
        .world_size = 1,
        .find_model = {}};
    for (const std::string& key : keys)
      options.overrides.push_back({key});
    return load_train_config(options).config;
  };
  EXPECT_TRUE(asks_for_choices(config_with({"training.router_bias_rate=0"})));
  TrainConfig moving = config_with({"training.router_aux_loss=0"});
  EXPECT_TRUE(asks_for_choices(moving));
  moving.adapter.rank = 4;
  EXPECT_FALSE(asks_for_choices(moving));
  const TrainConfig config = config_with(
      {"training.router_bias_rate=0", "training.router_aux_loss=0"});
  EXPECT_FALSE(asks_for_choices(config));
  const ProcessMesh mesh({}, 0, nullptr);
  const TrainingData data = open_training_data(training_data_options(config));
  TrainStep step(config, mesh, data);
  const StepResult result = step.run(1);
  EXPECT_EQ(result.skipped, StepResult::Skipped::kNo);
  EXPECT_FALSE(result.routers.layers.empty());
  EXPECT_TRUE(result.routers.learned.empty());
}

// A step whose gradient is not finite moves nothing.
TEST_F(RouterBalanceRun, ASkippedStepLeavesTheBias) {
  LoadOptions options{
      .path = folder_ / "run.json",
      .overrides = {{"training.on_non_finite=skip"}},
      .world_size = 1,
      .find_model = {}};
  const TrainConfig config = load_train_config(options).config;
  const ProcessMesh mesh({}, 0, nullptr);
  const TrainingData data = open_training_data(training_data_options(config));
  TrainStep step(config, mesh, data);
  auto& model = step.stages().front()->model();
  const auto bias = [&] {
    return model
        .named_parameters()["model.layers.1.mlp.gate.e_score_correction_bias"]
        .clone();
  };
  step.run(1);
  const torch::Tensor before = bias();
  EXPECT_GT(before.abs().max().item<double>(), 0);
  {
    const torch::NoGradGuard no_grad;
    model.named_parameters()["model.norm.weight"].fill_(std::nan(""));
  }
  EXPECT_EQ(step.run(2).skipped, StepResult::Skipped::kNotFinite);
  EXPECT_TRUE(torch::equal(bias(), before));
}

}  // namespace
}  // namespace brigade
