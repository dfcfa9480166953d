// ZeRO stages against the same training without them. Stage 3 has more in
// sharded_weights_test.cpp.
#include "brigade/param/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <mutex>

#include "brigade/base/error.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

constexpr int kShardedSteps = 4;
constexpr size_t kShardedMicroBatches = 3;

// Sizes that no number of ranks divides.
struct ShardedNet : torch::nn::Module {
  ShardedNet() {
    first = register_module("first", torch::nn::Linear(37, 53));
    second = register_module("second", torch::nn::Linear(53, 29));
    third = register_module("third", torch::nn::Linear(29, 3));
    fill_params(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

GradSyncOptions sharded(Sharding sharding) {
  GradSyncOptions options;
  options.bucket_capacity_bytes = 8 * KiB;  // several buckets
  options.first_bucket_bytes = 1 * KiB;
  options.last_bucket_bytes = 1 * KiB;
  options.handover = GradHandover::kMainGrad;
  options.sharding = sharding;
  return options;
}

torch::Tensor batch(int64_t step, size_t micro_batch, int rank) {
  return pseudo_random(
      {4, 37}, 100 * step + 10 * static_cast<int64_t>(micro_batch) + rank);
}

using Wrapped = DataParallel<std::shared_ptr<ShardedNet>>;

void backward_of_step(Wrapped& model, int64_t step, int rank) {
  for (size_t i = 0; i < kShardedMicroBatches; ++i) {
    const auto guard = model.accumulate_until_last(i, kShardedMicroBatches);
    model.forward(batch(step, i, rank)).pow(2).mean().backward();
  }
}

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& param : module.parameters())
    values.push_back(param.detach().clone());
  return values;
}

std::vector<torch::Tensor> train_with_adamw(
    const CommunicatorPtr& world,
    const GradSyncOptions& options,
    torch::ScalarType dtype = torch::kFloat) {
  const auto net = std::make_shared<ShardedNet>();
  net->to(dtype);
  Wrapped model(net, world, options);
  AdamW optimizer = make_adamw(model.sync(), 0.1);
  for (int64_t step = 0; step < kShardedSteps; ++step) {
    for (size_t i = 0; i < kShardedMicroBatches; ++i) {
      const auto guard = model.accumulate_until_last(i, kShardedMicroBatches);
      model.forward(batch(step, i, world->rank()).to(dtype))
          .pow(2)
          .mean()
          .backward();
    }
    optimizer.step(0.01, model.sync().grad_scale(), ops::AfterRead::kZero);
    model.gather_weights();
  }
  const FullWeights whole(model.sync());
  return values_of(*net);
}

class ShardingTest
    : public ::testing::TestWithParam<std::tuple<Sharding, int>> {};

TEST_P(ShardingTest, TrainsAsWithout) {
  const auto& [sharding, ranks] = GetParam();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
      const auto whole =
          train_with_adamw(world, sharded(Sharding::kNone), dtype);
      const auto divided = train_with_adamw(world, sharded(sharding), dtype);
      const double tolerance = dtype == torch::kFloat ? 1e-6 : 1e-2;
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_LT((whole[i] - divided[i]).abs().max().item<double>(), tolerance)
            << i;
    });
  }
}

// A sum of two is the same in either order. The sums of micro-batches over
// ranks depend on when they are added up.
TEST(Sharding, IsBitEqualForTheOptimizersOfTwoRanks) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto whole = train_with_adamw(world, sharded(Sharding::kNone));
    const auto divided = train_with_adamw(world, sharded(Sharding::kOptimizer));
    for (size_t i = 0; i < whole.size(); ++i)
      EXPECT_TRUE(torch::equal(whole[i], divided[i])) << i;
  });
}

TEST_P(ShardingTest, HalvesOnTheWireKeepWeightsClose) {
  const auto& [sharding, ranks] = GetParam();
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto whole = train_with_adamw(world, sharded(Sharding::kNone));
    for (const auto wire : {torch::kBFloat16, torch::kHalf}) {
      GradSyncOptions options = sharded(sharding);
      options.hook = reduce_scatter_hook(wire);
      const auto divided = train_with_adamw(world, options);
      for (size_t i = 0; i < whole.size(); ++i)
        EXPECT_LT((whole[i] - divided[i]).abs().max().item<double>(), 0.02)
            << i;
    }
  });
}

TEST_P(ShardingTest, TorchOptimStepsWhatARankOwns) {
  const auto& [sharding, ranks] = GetParam();
  // One process with the mean over all ranks' batches.
  ShardedNet single;
  torch::optim::Adam oracle(single.parameters(), 0.01);
  for (int64_t step = 0; step < kShardedSteps; ++step) {
    oracle.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      for (size_t i = 0; i < kShardedMicroBatches; ++i)
        (single.forward(batch(step, i, rank)).pow(2).mean() / ranks).backward();
    }
    oracle.step();
  }
  const auto expected = values_of(single);
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto net = std::make_shared<ShardedNet>();
    Wrapped model(net, world, sharded(sharding));
    torch::optim::Adam optimizer(owned_parameters(model.sync()), 0.01);
    for (int64_t step = 0; step < kShardedSteps; ++step) {
      backward_of_step(model, step, world->rank());
      model.step(optimizer);
    }
    const FullWeights whole(model.sync());
    const auto values = values_of(*net);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_LT((values[i] - expected[i]).abs().max().item<double>(), 2e-5)
          << i;
  });
}

TEST_P(ShardingTest, EachElementHasOneOwner) {
  const auto& [sharding, ranks] = GetParam();
  std::mutex mutex;
  std::vector<int64_t> owned;
  int64_t state_numel = 0;
  int64_t flat_numel = 0;
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto net = std::make_shared<ShardedNet>();
    Wrapped model(net, world, sharded(sharding));
    const AdamW optimizer = make_adamw(model.sync(), 0.0);
    const std::lock_guard lock(mutex);
    const auto params = model.sync().params();
    owned.resize(params.size());
    for (size_t i = 0; i < params.size(); ++i)
      owned[i] += params[i].owned.numel;
    for (size_t i = 0; i < optimizer.groups().size(); ++i)
      state_numel += find_state(optimizer.states(i), "exp_avg").numel();
    flat_numel = 0;
    for (const FlatSegment& segment : model.sync().segments())
      flat_numel += segment.main_grad.numel();
  });
  const auto params = ShardedNet().parameters();
  for (size_t i = 0; i < params.size(); ++i)
    EXPECT_EQ(owned[i], params[i].numel()) << i;
  EXPECT_EQ(state_numel, flat_numel);  // of all ranks together
}

// What is left in the memory of others must not be added to the next step.
TEST_P(ShardingTest, GradientsNotOwnedAreZeroAfterTheReduction) {
  const auto& [sharding, ranks] = GetParam();
  run_ranks(ranks, [&, sharding = sharding](const CommunicatorPtr& world) {
    const auto net = std::make_shared<ShardedNet>();
    Wrapped model(net, world, sharded(sharding));
    backward_of_step(model, 0, world->rank());
    double owned = 0;
    for (const FlatSegment& segment : model.sync().segments()) {
      auto rest = segment.main_grad.clone();
      if (sharding == Sharding::kOptimizer)
        rest.narrow(0, segment.owned.begin, segment.owned.numel).zero_();
      EXPECT_EQ(rest.abs().max().item<double>(), 0.0);
      owned += segment.owned_main_grad().abs().sum().item<double>();
    }
    EXPECT_GT(owned, 0.0);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stages,
    ShardingTest,
    ::testing::Combine(
        ::testing::Values(
            Sharding::kOptimizer,
            Sharding::kGradients,
            Sharding::kParameters),
        ::testing::Values(1, 2, 3)),
    [](const auto& each) {
      return std::string(to_string(std::get<0>(each.param))) + "_" +
             std::to_string(std::get<1>(each.param));
    });

TEST(Sharding, AStepWithoutGatherIsAnError) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<ShardedNet>();
    Wrapped model(net, world, sharded(Sharding::kOptimizer));
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    backward_of_step(model, 0, world->rank());
    optimizer.step(0.01, 1.0, ops::AfterRead::kZero);
    EXPECT_THAT(
        [&] { backward_of_step(model, 1, world->rank()); },
        ThrowsMessage<UsageError>(HasSubstr("call gather_weights()")));
  });
}

TEST(Sharding, RefusesWhatItCannotDivide) {
  struct Refused {
    Sharding sharding;
    std::function<void(GradSyncOptions&)> change;
    std::string message;
  };
  const std::vector<Refused> cases = {
      {Sharding::kOptimizer,
       [](auto& o) { o.handover = GradHandover::kParamDtype; },
       "handover = kParamDtype"},
      {Sharding::kOptimizer,
       [](auto& o) { o.order = BucketOrder::kObserved; },
       "order = kObserved"},
      {Sharding::kGradients,
       [](auto& o) { o.reach = GraphReach::kAsInFirstStep; },
       "reach = kAsInFirstStep"},
      {Sharding::kGradients,
       [](auto& o) { o.missing_gradient = MissingGradient::kZero; },
       "missing_gradient = kZero"},
      {Sharding::kParameters,
       [](auto& o) { o.reach = GraphReach::kAsInFirstStep; },
       "sharding = parameters with reach = kAsInFirstStep"}};
  for (const Refused& each : cases) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      GradSyncOptions options = sharded(each.sharding);
      each.change(options);
      EXPECT_THAT(
          [&] {
            const Wrapped model(std::make_shared<ShardedNet>(), world, options);
          },
          ThrowsMessage<UsageError>(HasSubstr(each.message)))
          << each.message;
    });
  }
  run_ranks(2, [&](const CommunicatorPtr& world) {
    EXPECT_THROW(
        Wrapped(
            std::make_shared<ShardedNet>(),
            world,
            sharded(Sharding::kOptimizer),
            {.sync = GradSyncAlgorithm::kPerParam}),
        UsageError);
    Wrapped model(
        std::make_shared<ShardedNet>(), world, sharded(Sharding::kOptimizer));
    EXPECT_THROW(model.allow_uneven_inputs(), UsageError);
  });
}

TEST(Sharding, SendsHalfOfAnAllReduceForGradients) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto bytes_of = [&](Sharding sharding) {
      Wrapped model(std::make_shared<ShardedNet>(), world, sharded(sharding));
      model.forward(batch(0, 0, world->rank())).pow(2).mean().backward();
      int64_t bytes = 0;
      for (const BucketTiming& bucket : model.report().buckets)
        bytes += bucket.bytes;
      return bytes;
    };
    EXPECT_EQ(2 * bytes_of(Sharding::kOptimizer), bytes_of(Sharding::kNone));
  });
}

}  // namespace
}  // namespace brigade
