// Flat memory of weights and gradients: where things are, and what is owned.
#include "brigade/param/param_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::Each;
using testing::make_world_of_one;
using testing::run_ranks;

struct BufferedParams {
  std::vector<Param> params;
  BucketPlan plan;

  // Parameters of these sizes in buckets of at most 200 elements, the last
  // first.
  BufferedParams(
      const std::vector<int64_t>& numels,
      const CommunicatorPtr& world,
      BucketOrder order = BucketOrder::kReverse) {
    for (const int64_t numel : numels) {
      params.push_back(
          {.name = std::to_string(numel),
           .tensor = torch::full(
               {numel}, static_cast<double>(numel), torch::requires_grad()),
           .group = world});
    }
    plan = make_plan(order);
  }
  BucketPlan make_plan(BucketOrder order) const {
    return plan_buckets(
        bucket_params_of(params, Sharding::kNone),
        initial_order(order, static_cast<int>(params.size())),
        {.capacity_bytes = 800,
         .first_bucket_bytes = 800,
         .last_bucket_bytes = 800,
         .ranks = params[0].group->size()});
  }
};

TEST(ParamMemory, GradientsAreViewsInTheOrderOfThePlan) {
  BufferedParams of({60, 100, 3}, make_world_of_one());
  ParamMemory memory(of.plan, of.params, FlatWeights::kMove, Sharding::kNone);
  ASSERT_EQ(memory.segments().size(), 2);
  // 3 and 100 fill the first bucket, each from a multiple of 64 on.
  EXPECT_EQ(memory.segments()[0].main_grad.numel(), 192);
  memory.main_grad(1).fill_(1);
  EXPECT_EQ(memory.segments()[0].main_grad.sum().item<double>(), 100);
  EXPECT_EQ(memory.segments()[0].main_grad[64].item<double>(), 1);
  EXPECT_EQ(memory.segments()[0].owned.numel, 192);
  memory.zero_main_grads();
  EXPECT_EQ(memory.segments()[0].main_grad.abs().sum().item<double>(), 0);
  // Weights lie beside them, with their values.
  EXPECT_EQ(memory.segments()[0].weight[64].item<double>(), 100);
  EXPECT_TRUE(of.params[1].tensor.is_alias_of(memory.segments()[0].weight));
}

TEST(ParamMemory, RanksOwnEachElementOnce) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<std::vector<RunPart>> of_ranks(static_cast<size_t>(ranks));
    std::vector<std::vector<int64_t>> owners = {
        std::vector<int64_t>(60), std::vector<int64_t>(100), {0, 0, 0}};
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      BufferedParams of({60, 100, 3}, world);
      const ParamMemory memory(
          of.plan, of.params, FlatWeights::kMove, Sharding::kOptimizer);
      for (const Param& param : of.params)
        of_ranks[static_cast<size_t>(world->rank())].push_back(param.owned);
    });
    for (const auto& parts : of_ranks) {
      for (size_t param = 0; param < parts.size(); ++param) {
        for (int64_t i = 0; i < parts[param].numel; ++i)
          ++owners[param][static_cast<size_t>(parts[param].begin + i)];
      }
    }
    for (const auto& counts : owners)
      EXPECT_THAT(counts, Each(1));
  }
}

TEST(ParamMemory, OnlyTheOwnedRangeOfAReducedSegmentStays) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    BufferedParams of({100}, world);
    ParamMemory memory(
        of.plan, of.params, FlatWeights::kMove, Sharding::kOptimizer);
    memory.main_grad(0).fill_(1);
    memory.take_reduced(0);
    // 128 elements, of which each rank owns 64.
    const double owned = world->rank() == 0 ? 64 : 36;
    EXPECT_EQ(memory.main_grad(0).sum().item<double>(), owned);
    EXPECT_EQ(
        memory.segments()[0].owned_main_grad().sum().item<double>(), owned);
  });
}

TEST(ParamMemory, DividedGradientsAddUpInTheShardAndTheirMemoryIsEmptied) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    BufferedParams of({100}, world);
    ParamMemory memory(
        of.plan, of.params, FlatWeights::kMove, Sharding::kGradients);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      memory.main_grad(0).fill_(1);
      memory.take_reduced(0);
      EXPECT_EQ(memory.main_grad(0).sum().item<double>(), 0);
    }
    const double owned = world->rank() == 0 ? 64 : 36;
    EXPECT_EQ(memory.segments()[0].grad_shard.sum().item<double>(), 3 * owned);
    memory.zero_main_grads();
    EXPECT_EQ(memory.segments()[0].grad_shard.sum().item<double>(), 0);
  });
}

TEST(ParamMemory, AMoveKeepsGradientsAndWeightsAndIsSeenByOptimizers) {
  BufferedParams of({60, 100, 3}, make_world_of_one());
  ParamMemory memory(of.plan, of.params, FlatWeights::kMove, Sharding::kNone);
  for (int param = 0; param < 3; ++param)
    memory.main_grad(param).fill_(param + 1);
  const FlatMemoryPtr watched = memory.flat_memory();
  const int64_t version = memory.layout_version();
  memory.move_to(of.make_plan(BucketOrder::kRegistration));
  EXPECT_FALSE(watched->is_current);
  EXPECT_TRUE(memory.flat_memory()->is_current);
  EXPECT_GT(memory.layout_version(), version);
  for (int param = 0; param < 3; ++param) {
    const auto& tensor = of.params[static_cast<size_t>(param)].tensor;
    EXPECT_EQ(memory.main_grad(param).mean().item<double>(), param + 1);
    EXPECT_EQ(
        tensor.mean().item<double>(), static_cast<double>(tensor.numel()));
  }
}

TEST(ParamMemory, TakesTheValuesOfParametersThatWereGivenOtherMemory) {
  BufferedParams of({60, 100}, make_world_of_one());
  Param frozen{.name = "frozen", .tensor = torch::zeros({5})};
  frozen.group = of.params[0].group;
  of.params.push_back(frozen);
  ParamMemory memory(
      with_frozen(of.plan, of.params, Sharding::kNone, {}),
      of.params,
      FlatWeights::kMove,
      Sharding::kNone);
  // Frozen ones have a place, but no gradients.
  EXPECT_EQ(memory.all_segments().size(), memory.segments().size() + 1);
  EXPECT_FALSE(memory.all_segments().back().main_grad.defined());
  EXPECT_EQ(of.params.back().owned.numel, 0);
  memory.take_back();
  EXPECT_EQ(memory.flat_memory()->weights_version, 0);
  of.params[0].tensor.set_data(torch::full({60}, 7.0));
  EXPECT_TRUE(memory.are_replaced());
  memory.take_back();
  EXPECT_EQ(memory.flat_memory()->weights_version, 1);
  EXPECT_TRUE(of.params[0].tensor.is_alias_of(of.params[1].tensor));
  EXPECT_EQ(of.params[0].tensor[59].item<double>(), 7);
  // Optimizers need not hear of a frozen one.
  of.params[2].tensor.set_data(torch::full({5}, 8.0));
  memory.take_back();
  EXPECT_EQ(memory.flat_memory()->weights_version, 1);
  EXPECT_TRUE(of.params[2].tensor.is_alias_of(of.params[1].tensor));
  EXPECT_EQ(of.params[2].tensor[4].item<double>(), 8);
}

}  // namespace
}  // namespace brigade
