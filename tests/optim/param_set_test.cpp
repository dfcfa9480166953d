// A parameter set visits trained and frozen parameters in every sharding.
#include "brigade/optim/param_stepper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/adamw.h"
#include "brigade/sharding/param_set.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::make_world_of_one;
using testing::run_ranks;

// Two units, each with a frozen bf16 matrix and a trained vector.
std::vector<Param> frozen_and_trained() {
  std::vector<Param> params;
  for (int unit = 0; unit < 2; ++unit) {
    const auto values = torch::arange(35, torch::kFloat) + 100 * unit;
    Param matrix;
    matrix.name = "matrix" + std::to_string(unit);
    matrix.tensor = values.view({5, 7}).to(torch::kBFloat16);
    matrix.unit = unit;
    Param vector;
    vector.name = "vector" + std::to_string(unit);
    vector.tensor = values.clone().requires_grad_();
    vector.unit = unit;
    params.push_back(std::move(matrix));
    params.push_back(std::move(vector));
  }
  return params;
}

ParamStepper make_stepper(
    const std::vector<Param>& params,
    const CommunicatorPtr& world,
    Sharding sharding) {
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.sharding = sharding;
  return {
      std::make_unique<BucketedGradSync>(params, world, options),
      [](const Param&) { return StepRule{}; },
      [](std::vector<OptimizerGroup> groups) {
        return std::make_unique<AdamW>(std::move(groups), AdamWOptions{});
      }};
}

// (vector + 1) * the sum of the matrix, for each unit in turn.
torch::Tensor train_a_step(
    ParamStepper& stepper,
    const std::vector<Param>& params) {
  GradSync& sync = stepper.sync();
  torch::Tensor loss = torch::zeros({});
  for (size_t unit = 0; unit < 2; ++unit) {
    sync.weights().use(static_cast<int>(unit));
    const torch::Tensor scale =
        params[2 * unit].tensor.to(torch::kFloat).sum() / 1000;
    loss = loss + ((params[2 * unit + 1].tensor + 1) * scale).sum();
  }
  loss.backward();
  stepper.optimizer().step(0.5, sync.grad_scale(), ops::AfterRead::kZero);
  sync.reset();
  sync.gather_weights();
  return loss.detach();
}

using Saved = std::map<std::string, std::map<std::string, torch::Tensor>>;

Saved save(const ParamStepper& stepper) {
  Saved saved;
  stepper.sync().param_set().visit([&](const Param& param) {
    saved[param.name]["weight"] = param.tensor.clone();
    for (const State& state : param.states)
      saved[param.name][state.name] = state.tensor.clone();
  });
  return saved;
}

void load(ParamStepper& stepper, const Saved& saved) {
  stepper.sync().param_set().fill([&](const Param& param) {
    const auto& of = saved.at(param.name);
    torch::Tensor(param.tensor).copy_(of.at("weight"));
    for (const State& state : param.states)
      torch::Tensor(state.tensor).copy_(of.at(state.name));
  });
}

void expect_equal(const Saved& a, const Saved& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensors] : a) {
    ASSERT_EQ(tensors.size(), b.at(name).size()) << name;
    for (const auto& [kind, tensor] : tensors)
      EXPECT_TRUE(torch::equal(tensor, b.at(name).at(kind)))
          << kind << " of " << name;
  }
}

constexpr std::array kShardings = {
    Sharding::kNone,
    Sharding::kOptimizer,
    Sharding::kGradients,
    Sharding::kParameters};

class ParamSets : public ::testing::TestWithParam<Sharding> {};

TEST_P(ParamSets, StepsAndStatesEqualThoseOfOneRankWithFrozenParameters) {
  const auto alone = frozen_and_trained();
  ParamStepper one = make_stepper(alone, make_world_of_one(), Sharding::kNone);
  std::vector<torch::Tensor> losses;
  for (int step = 0; step < 3; ++step)
    losses.push_back(train_a_step(one, alone));
  const Saved expected = save(one);
  EXPECT_EQ(expected.at("matrix0").size(), 1);
  EXPECT_EQ(expected.at("vector0").size(), 3);
  run_ranks(4, [&](const CommunicatorPtr& world) {
    const auto params = frozen_and_trained();
    ParamStepper stepper = make_stepper(params, world, GetParam());
    for (int step = 0; step < 3; ++step)
      EXPECT_TRUE(torch::equal(train_a_step(stepper, params), losses[step]));
    expect_equal(save(stepper), expected);
  });
}

TEST_P(ParamSets, LoadedValuesAreTrainedAndSaved) {
  const auto alone = frozen_and_trained();
  ParamStepper one = make_stepper(alone, make_world_of_one(), Sharding::kNone);
  train_a_step(one, alone);
  Saved saved = save(one);
  saved["matrix1"]["weight"].fill_(3);
  load(one, saved);
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto params = frozen_and_trained();
    ParamStepper stepper = make_stepper(params, world, GetParam());
    load(stepper, saved);
    stepper.optimizer().set_steps(one.optimizer().steps());
    expect_equal(save(stepper), saved);
    train_a_step(stepper, params);
    EXPECT_EQ(save(stepper).at("matrix1").at("weight").min().item<float>(), 3);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shardings,
    ParamSets,
    ::testing::ValuesIn(kShardings),
    [](const auto& each) { return to_string(each.param); });

TEST(ParamSet, FrozenWeightsLieSideBySide) {
  std::vector<Param> params;
  for (const char* name : {"q", "k", "v"})
    params.push_back({.name = name, .tensor = torch::ones({8, 16})});
  params.push_back(
      {.name = "adapter", .tensor = torch::ones({3}, torch::requires_grad())});
  const ParamStepper stepper =
      make_stepper(params, make_world_of_one(), Sharding::kNone);
  // The last comes first, as with trained weights.
  for (size_t i = 0; i + 1 < 3; ++i) {
    EXPECT_TRUE(params[i].tensor.is_alias_of(params[i + 1].tensor));
    EXPECT_EQ(
        params[i].tensor.storage_offset(),
        params[i + 1].tensor.storage_offset() + 8 * 16);
  }
  EXPECT_EQ(stepper.sync().segments().size(), 1);
  EXPECT_FALSE(params[0].tensor.grad().defined());
}

TEST(ParamSet, FrozenWeightsThatShareMemoryStayWhereTheyAre) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    const auto mine = torch::arange(12, torch::kFloat);
    std::vector<Param> params = {
        {.name = "shared", .tensor = mine},
        {.name = "tied", .tensor = mine.view({3, 4})},
        {.name = "trained",
         .tensor = torch::ones({3}, torch::requires_grad())}};
    const ParamStepper stepper =
        make_stepper(params, world, Sharding::kParameters);
    EXPECT_TRUE(params[0].tensor.is_alias_of(params[1].tensor));
    EXPECT_EQ(params[0].tensor[5].item<float>(), 5);
    EXPECT_EQ(save(stepper).at("tied").at("weight")[1][1].item<float>(), 5);
  });
}

TEST(ParamSet, FrozenWeightsOfStage3AreDivided) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto params = frozen_and_trained();
    const ParamStepper stepper =
        make_stepper(params, world, Sharding::kParameters);
    // No unit was used yet, so no rank has whole weights.
    EXPECT_EQ(params[2].tensor.storage().nbytes(), 0);
    HeldUnit held(stepper.sync().weights());
    held.hold(1);
    EXPECT_EQ(params[2].tensor[0][1].item<float>(), 101);
  });
}

}  // namespace
}  // namespace brigade
