// Muon, SGD and schedule-free AdamW step a user's module in every sharding and
// on any number of ranks as on one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/optimizer_state.h"
#include "brigade/optim/owned_parameters.h"
#include "brigade/optim/step_in_backward.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;
using torch::Tensor;

std::vector<Param> make_params() {
  std::vector<Param> params;
  const std::vector<std::vector<int64_t>> shapes = {
      {5, 3}, {3}, {7, 4}, {2, 9}, {4}};
  for (const auto& shape : shapes) {
    Param param;
    param.name = "p" + std::to_string(params.size());
    int64_t numel = 1;
    for (const int64_t size : shape)
      numel *= size;
    param.tensor = torch::cos(torch::arange(numel, torch::kFloat))
                       .view(shape)
                       .clone()
                       .requires_grad_();
    params.push_back(std::move(param));
  }
  return params;
}

std::vector<SteppedParams> groups_of_params(const std::vector<Param>& params) {
  SteppedParams matrices{
      .params = {}, .weight_decay = 0.1, .unit = StepUnit::kMatrices};
  SteppedParams vectors;
  for (const Param& param : params)
    (param.tensor.dim() == 2 ? matrices : vectors)
        .params.push_back(param.tensor);
  return {matrices, vectors};
}

enum class Kind { kMuon, kSgd, kScheduleFree };

std::unique_ptr<Optimizer>
make(Kind kind, const GradSync& sync, const std::vector<Param>& params) {
  const auto groups = groups_of_params(params);
  switch (kind) {
    case Kind::kMuon:
      break;
    case Kind::kSgd:
      return std::make_unique<Sgd>(
          make_sgd(sync, groups, {.momentum = 0.9, .nesterov = true}));
    case Kind::kScheduleFree:
      return std::make_unique<ScheduleFreeAdamW>(
          make_schedule_free_adamw(sync, groups));
  }
  return std::make_unique<Muon>(make_muon(
      sync,
      groups,
      {.muon = {.newton_schulz = {.dtype = MuonDtype::kFloat32}}}));
}

std::unique_ptr<GradSync> make_sync(
    const std::vector<Param>& params,
    const CommunicatorPtr& world,
    Sharding sharding,
    int64_t block_numel = 1) {
  GradSyncOptions options;
  options.block_numel = block_numel;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.sharding = sharding;
  options.bucket_capacity_bytes = 130;  // several, which matrices fill unevenly
  return std::make_unique<BucketedGradSync>(params, world, options);
}

// All ranks have the same gradients, so their mean is the same for any number
// of ranks.
void step(
    GradSync& sync,
    Optimizer& optimizer,
    const std::vector<Param>& params,
    int number) {
  sync.weights().use(0);
  Tensor loss = torch::zeros({});
  for (const Param& param : params) {
    const auto i = torch::arange(param.tensor.numel(), torch::kFloat);
    loss = loss + (torch::sin(0.7 * i * i + number).view(param.tensor.sizes()) *
                   param.tensor)
                      .sum();
  }
  loss.backward();
  sync.finish();
  optimizer.step(std::vector<double>{0.02, 0.05}, sync.grad_scale());
  sync.reset();
  sync.gather_weights();
}

using Weights = std::map<std::string, Tensor>;

Weights weights_of(GradSync& sync, const std::vector<Param>& params) {
  HeldUnit held(sync.weights());
  held.hold(0);
  Weights result;
  for (const Param& param : params)
    result[param.name] = param.tensor.detach().clone();
  return result;
}

void expect_equal(const Weights& a, const Weights& b) {
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
}

TEST(MomentsInInt8, GoOnInAnotherShardingBitForBit) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto prepare = [&](const std::vector<Param>& params,
                             Sharding sharding) {
      auto sync = make_sync(params, world, sharding, kBlockNumel);
      auto optimizer = make(Kind::kMuon, *sync, params);
      optimizer->keep_moments_in(MomentDtype::kInt8);
      return std::pair(std::move(sync), std::move(optimizer));
    };
    const auto first = make_params();
    const auto [sync, optimizer] = prepare(first, Sharding::kGradients);
    for (int number = 0; number < 3; ++number)
      step(*sync, *optimizer, first, number);
    OptimizerState state;
    for (int to = 0; to < world->size(); ++to) {
      OptimizerState gathered = gather_optimizer_state(*sync, *optimizer, to);
      if (to == world->rank())
        state = std::move(gathered);
    }
    EXPECT_EQ(
        state.of_param.at("p0").at("muon_momentum").scalar_type(),
        torch::kFloat);
    const auto second = make_params();
    const Weights weights = weights_of(*sync, first);
    for (const Param& param : second) {
      const torch::NoGradGuard no_grad;
      Tensor(param.tensor).copy_(weights.at(param.name));
    }
    const auto [other_sync, other] = prepare(second, Sharding::kNone);
    load_optimizer_state(*other_sync, *other, state);
    step(*sync, *optimizer, first, 3);
    step(*other_sync, *other, second, 3);
    expect_equal(weights_of(*sync, first), weights_of(*other_sync, second));
  });
}

TEST(MomentsInInt8, WantMemoryThatIsAlignedToBlocks) {
  const auto params = make_params();
  const auto sync = make_sync(params, make_world_of_one(), Sharding::kNone);
  const auto optimizer = make(Kind::kMuon, *sync, params);
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { optimizer->keep_moments_in(MomentDtype::kInt8); }),
      HasSubstr("block_numel = 256"));
}

class EverySharding
    : public ::testing::TestWithParam<std::tuple<Kind, Sharding>> {};

TEST_P(EverySharding, StepsAsOneRankDoes) {
  const auto [kind, sharding] = GetParam();
  const auto alone = make_params();
  const auto one = make_sync(alone, make_world_of_one(), Sharding::kNone);
  const auto of_one = make(kind, *one, alone);
  for (int number = 0; number < 4; ++number)
    step(*one, *of_one, alone, number);
  const Weights expected = weights_of(*one, alone);
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      const auto params = make_params();
      const auto sync = make_sync(params, world, sharding);
      auto optimizer = make(kind, *sync, params);
      for (int number = 0; number < 2; ++number)
        step(*sync, *optimizer, params, number);
      // A new optimizer continues from the states that all ranks kept.
      std::vector<OptimizerState> states{
          gather_optimizer_state(*sync, *optimizer)};
      for (int rank = 1; rank < world->size(); ++rank)
        states.push_back(gather_optimizer_state(*sync, *optimizer, rank));
      optimizer = make(kind, *sync, params);
      load_optimizer_state(
          *sync, *optimizer, states[static_cast<size_t>(world->rank())]);
      for (int number = 2; number < 4; ++number)
        step(*sync, *optimizer, params, number);
      expect_equal(expected, weights_of(*sync, params));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    EverySharding,
    ::testing::Combine(
        ::testing::Values(Kind::kMuon, Kind::kSgd, Kind::kScheduleFree),
        ::testing::Values(
            Sharding::kNone,
            Sharding::kOptimizer,
            Sharding::kGradients,
            Sharding::kParameters)));

TEST(MakeMuon, NeedsMatricesAndAllGroupsAtOnce) {
  const auto params = make_params();
  const auto sync = make_sync(params, make_world_of_one(), Sharding::kNone);
  auto groups = groups_of_params(params);
  auto muon = make_muon(*sync, groups);
  EXPECT_THAT(
      message_of<Error>([&] { make_bucket_step(*sync, muon, 0.1); }),
      HasSubstr("steps whole matrices cannot step in backward"));
  groups[1].unit = StepUnit::kMatrices;
  EXPECT_THAT(
      message_of<Error>([&] { make_muon(*sync, groups); }),
      HasSubstr("has 1 dimensions: Muon steps matrices"));
  groups.erase(groups.begin());
  groups[0].unit = StepUnit::kElements;
  EXPECT_THAT(
      message_of<Error>([&] { make_muon(*sync, groups); }),
      HasSubstr("Muon without matrices"));
}

TEST(MakeMuon, AnotherOptimizersStateIsNamed) {
  const auto params = make_params();
  const auto sync = make_sync(params, make_world_of_one(), Sharding::kNone);
  const auto sgd = make(Kind::kSgd, *sync, params);
  step(*sync, *sgd, params, 0);
  const OptimizerState state = gather_optimizer_state(*sync, *sgd);
  const auto muon = make(Kind::kMuon, *sync, params);
  EXPECT_THAT(
      message_of<Error>([&] { load_optimizer_state(*sync, *muon, state); }),
      HasSubstr("has 'momentum_buffer' of 'p0', which this optimizer does not "
                "keep"));
}

}  // namespace
}  // namespace brigade
