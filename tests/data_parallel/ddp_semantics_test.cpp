// Edge cases in which users of PyTorch's DistributedDataParallel expect a
// certain result, against one process or a closed form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/model/recompute.h"
#include "brigade/wrap/data_parallel.h"
#include "brigade/wrap/sync_batch_norm.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;

constexpr auto kSyncs = {
    GradSyncAlgorithm::kBucketed,
    GradSyncAlgorithm::kPerParam};
constexpr auto kHandovers = {
    GradHandover::kParamDtype,
    GradHandover::kMainGrad};

torch::Tensor
leaf(int64_t numel, double value, torch::ScalarType dtype = torch::kFloat) {
  return torch::full({numel}, value, dtype).requires_grad_();
}

// One parameter "w".
struct Weight : torch::nn::Module {
  explicit Weight(torch::ScalarType dtype = torch::kFloat, double value = 1) {
    w = register_parameter("w", torch::full({2}, value, dtype));
  }
  torch::Tensor forward(const torch::Tensor& x) { return w * x; }
  torch::Tensor w;
};

// The first element of w's gradient with the mean applied.
double mean_gradient(DataParallel<std::shared_ptr<Weight>>& model) {
  const GradSync& sync = model.sync();
  if (sync.options().handover == GradHandover::kMainGrad)
    return sync.main_grad(0)[0].item<double>() * sync.grad_scale();
  return model->w.grad()[0].item<double>();
}

// ---- zero_grad() between micro-batches

class ZeroGrad
    : public ::testing::TestWithParam<
          std::tuple<GradSyncAlgorithm, GradHandover, torch::Dtype>> {};

// 100 accumulated, dropped, then 1: the step's gradient is 1.
TEST_P(ZeroGrad, DropsWhatWasAccumulatedBetweenMicroBatches) {
  const auto [sync, handover, dtype] = GetParam();
  for (const double dropped :
       {100.0, std::numeric_limits<double>::quiet_NaN()}) {
    for (const bool to_none : {false, true}) {
      run_ranks(
          2,
          [&, sync = sync, handover = handover, dtype = dtype](
              CommunicatorPtr world) {
            GradSyncOptions options;
            options.handover = handover;
            DataParallel model(
                std::make_shared<Weight>(dtype),
                world,
                options,
                {.sync = sync});
            for (int step = 0; step < 2; ++step) {
              {
                const auto guard = model.no_sync();
                (model->w * dropped).sum().backward();
              }
              model.module().zero_grad(to_none);
              (model->w * 1).sum().backward();
              EXPECT_EQ(mean_gradient(model), 1.0) << to_none << " " << step;
              model.reset();
            }
          });
    }
  }
}

// The gradient is dropped, and the last micro-batch does not reach it.
TEST_P(ZeroGrad, LeavesZeroWhereTheLastMicroBatchDoesNotReachIt) {
  const auto [sync, handover, dtype] = GetParam();
  auto w = leaf(2, 1, dtype);
  auto other = leaf(2, 1, dtype);
  GradSyncOptions options;
  options.handover = handover;
  options.missing_gradient = MissingGradient::kZero;
  const auto grads = make_grad_sync(
      sync, {{"w", w}, {"other", other}}, make_world_of_one(), options);
  grads->set_accumulate_only(true);
  (w * 100).sum().backward();
  grads->set_accumulate_only(false);
  w.mutable_grad().reset();
  other.sum().backward();
  EXPECT_EQ(grads->main_grad(0)[0].item<double>(), 0.0);
  EXPECT_EQ(grads->main_grad(1)[0].item<double>(), 1.0);
}

TEST_P(ZeroGrad, AnAccumulatingGradientReadsAsThisRanksSum) {
  const auto [sync, handover, dtype] = GetParam();
  run_ranks(
      2,
      [&, sync = sync, handover = handover, dtype = dtype](
          CommunicatorPtr world) {
        GradSyncOptions options;
        options.handover = handover;
        DataParallel model(
            std::make_shared<Weight>(dtype), world, options, {.sync = sync});
        const auto guard = model.no_sync();
        for (int m = 1; m <= 3; ++m) {
          (model->w * (world->rank() + 1)).sum().backward();
          EXPECT_EQ(
              model->w.grad()[0].item<double>(), m * (world->rank() + 1.0));
        }
      });
}

// Clipping accumulated gradients has an effect, as in PyTorch.
TEST_P(ZeroGrad, ChangesToAnAccumulatingGradientCount) {
  const auto [sync, handover, dtype] = GetParam();
  run_ranks(
      2,
      [&, sync = sync, handover = handover, dtype = dtype](
          CommunicatorPtr world) {
        GradSyncOptions options;
        options.handover = handover;
        DataParallel model(
            std::make_shared<Weight>(dtype), world, options, {.sync = sync});
        {
          const auto guard = model.no_sync();
          (model->w * 8).sum().backward();
        }
        {
          const torch::NoGradGuard no_grad;
          model->w.mutable_grad().mul_(0.5);
        }
        (model->w * (world->rank() + 1)).sum().backward();
        EXPECT_EQ(mean_gradient(model), 5.5);
      });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ZeroGrad,
    ::testing::Combine(
        ::testing::ValuesIn(kSyncs),
        ::testing::ValuesIn(kHandovers),
        ::testing::Values(torch::kFloat, torch::kBFloat16)));

// ---- join

TEST(Join, EveryRankEndsWithTheModelOfTheLastToJoin) {
  run_ranks(3, [&](CommunicatorPtr world) {
    struct Net : torch::nn::Module {
      Net() {
        w = register_parameter("w", torch::zeros({3}));
        frozen = register_parameter("frozen", torch::zeros({1}), false);
        count = register_buffer("count", torch::zeros({1}));
      }
      torch::Tensor w, frozen, count;
    };
    DataParallel model(std::make_shared<Net>(), world);
    model.allow_uneven_inputs();
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    double expected = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      // Rank 1 has the most data, ranks 0 and 2 none and one step.
      const int steps = std::array<int, 3>{0, 3, 1}[world->rank()];
      for (int step = 0; step < steps; ++step) {
        (model->w * (world->rank() + 1)).sum().backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        model->count.add_(world->rank() + 1);
      }
      model.join();
      // Mean of 2 and 3, then 2 and 2, stepped by rank 1.
      expected -= 2.5 + 2 + 2;
      EXPECT_EQ(model->w[0].item<double>(), expected) << world->rank();
      EXPECT_EQ(model->count.item<double>(), 6.0 * (epoch + 1));
    }
  });
}

// Joined ranks run no forward, so its collectives would meet others.
TEST(Join, IsRefusedForAForwardWithCollectives) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel with_buffers(
        std::make_shared<Weight>(), world, {}, {.broadcast_buffers = true});
    EXPECT_THAT(
        message_of<UsageError>([&] { with_buffers.allow_uneven_inputs(); }),
        HasSubstr("uneven inputs with broadcast_buffers"));
    DataParallel with_norm(
        torch::nn::Sequential(torch::nn::Linear(2, 3), SyncBatchNorm(3, world)),
        world);
    EXPECT_THAT(
        message_of<UsageError>([&] { with_norm.allow_uneven_inputs(); }),
        HasSubstr("uneven inputs with a SyncBatchNorm"));
  });
}

TEST(Join, MayDivideByAllRanks) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(), world);
    model.allow_uneven_inputs(
        {.divisor = UnevenInputsOptions::Divisor::kAllRanks});
    if (world->rank() == 0) {
      (model->w * 3).sum().backward();
      EXPECT_EQ(model->w.grad()[0].item<double>(), 1.5);
    }
    model.join();
  });
}

TEST(Join, MayThrowOnEveryRankOnceSomeHaveNoData) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(), world);
    model.allow_uneven_inputs(
        {.early_end = UnevenInputsOptions::EarlyEnd::kThrow});
    model->w.sum().backward();
    const std::string message = message_of<UsageError>([&] {
      if (world->rank() == 0)
        model->w.sum().backward();
      else
        model.join();
    });
    EXPECT_THAT(
        message, HasSubstr("1 of the 2 ranks of group 'world' have no more"));
  });
  // No error where all ranks end at once.
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(), world);
    model.allow_uneven_inputs(
        {.early_end = UnevenInputsOptions::EarlyEnd::kThrow});
    model->w.sum().backward();
    EXPECT_NO_THROW(model.join());
  });
}

TEST(Join, CountsWhatWasAccumulatedBeforeIt) {
  for (const GradHandover handover : kHandovers) {
    run_ranks(2, [&](CommunicatorPtr world) {
      GradSyncOptions options;
      options.handover = handover;
      DataParallel model(std::make_shared<Weight>(), world, options);
      model.allow_uneven_inputs();
      {
        const auto guard = model.no_sync();
        (model->w * 4).sum().backward();
      }
      if (world->rank() == 0) {
        (model->w * 2).sum().backward();
        // (4 + 2 of rank 0, 4 of rank 1) / 2
        EXPECT_EQ(mean_gradient(model), 5.0);
        model.reset();
      }
      model.join();
    });
  }
}

TEST(Join, DifferentOptionsAreAnErrorOnEveryRank) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(), world);
    EXPECT_THAT(
        message_of<CommError>([&] {
          model.allow_uneven_inputs(
              {.early_end = world->rank() == 0
                                ? UnevenInputsOptions::EarlyEnd::kShadow
                                : UnevenInputsOptions::EarlyEnd::kThrow});
        }),
        AllOf(
            HasSubstr("rank 0 has 'early_end: shadow'"),
            HasSubstr("rank 1 has 'early_end: throw'")));
  });
}

TEST(Join, IsRefusedWithoutAllowingUnevenInputs) {
  DataParallel model(std::make_shared<Weight>(), make_world_of_one());
  EXPECT_THAT(
      message_of<UsageError>([&] { model.join(); }),
      HasSubstr("call allow_uneven_inputs() on every rank before"));
}

// The masters of bf16 weights follow the weights of the rank that joined last.
TEST(Join, BrigadesAdamWContinuesFromTheWeightsThatItBrought) {
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    DataParallel model(
        std::make_shared<Weight>(torch::kBFloat16), world, options);
    model.allow_uneven_inputs();
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    for (int step = 0; step < 1 + 2 * world->rank(); ++step) {
      model->w.sum().backward();
      optimizer.step(1e-4, model.sync().grad_scale(), ops::AfterRead::kZero);
    }
    model.join();
    model->w.sum().backward();
    optimizer.step(0.0, model.sync().grad_scale(), ops::AfterRead::kZero);
    // A step of 0 writes the master, rounded: its low half is gone.
    EXPECT_EQ(
        find_state(optimizer.states(0), kMasterLow).abs().sum().item<int64_t>(),
        0);
  });
}

// ---- ranks must agree

std::string difference(
    const std::function<
        std::pair<std::vector<Param>, GradSyncOptions>(int rank)>& make) {
  std::vector<std::string> messages(2);
  run_ranks(2, [&](CommunicatorPtr world) {
    const int rank = world->rank();
    messages[static_cast<size_t>(rank)] = message_of<Error>([&] {
      const auto [params, options] = make(rank);
      BucketedGradSync sync(params, world, options);
    });
  });
  EXPECT_EQ(messages[0], messages[1]);
  return messages[0];
}

TEST(RankDifferences, FrozenParametersOrderStridesAndDtypesAreNamed) {
  const auto of_params = [](const auto& make) {
    return difference(
        [&](int rank) { return std::pair(make(rank), GradSyncOptions{}); });
  };
  EXPECT_THAT(
      of_params([](int rank) -> std::vector<Param> {
        auto b = leaf(2, 1);
        b.set_requires_grad(rank == 0);
        return {{"a", leaf(2, 1)}, {"b", b}};
      }),
      AllOf(
          HasSubstr("rank 0 has 'b: [2] Float'"),
          HasSubstr("rank 1 has 'b: [2] Float, frozen'")));
  EXPECT_THAT(
      of_params([](int rank) -> std::vector<Param> {
        const torch::Tensor all = torch::ones({4});
        const torch::Tensor b = all.narrow(0, 0, 2);
        const torch::Tensor c = all.narrow(0, rank == 0 ? 2 : 1, 2);
        return {{"a", leaf(2, 1)}, {"b", b}, {"c", c}};
      }),
      AllOf(
          HasSubstr("rank 0 has 'b: [2] Float, frozen'"),
          HasSubstr("rank 1 has 'b: [2] Float, frozen, shares memory'")));
  EXPECT_THAT(
      of_params([](int rank) -> std::vector<Param> {
        std::vector<Param> params{{"a", leaf(2, 1)}, {"b", leaf(2, 1)}};
        if (rank == 1)
          std::swap(params[0], params[1]);
        return params;
      }),
      AllOf(HasSubstr("rank 0 has 'a: "), HasSubstr("rank 1 has 'b: ")));
  EXPECT_THAT(
      of_params([](int rank) -> std::vector<Param> {
        auto a = torch::ones({2, 3});
        if (rank == 1)
          a = torch::ones({3, 2}).t();
        return {{"a", a.detach().requires_grad_()}};
      }),
      HasSubstr("rank 1 has 'a: [2, 3] Float, strides [1, 2]'"));
  EXPECT_THAT(
      of_params([](int rank) -> std::vector<Param> {
        return {{"a", leaf(2, 1, rank == 0 ? torch::kFloat : torch::kDouble)}};
      }),
      HasSubstr("rank 1 has 'a: [2] Double'"));
}

TEST(RankDifferences, OptionsThatShapeTheCollectivesAreNamed) {
  const auto of_options = [](const std::function<void(GradSyncOptions&)>& set) {
    return difference([&](int rank) {
      GradSyncOptions options;
      if (rank == 1)
        set(options);
      return std::pair(std::vector<Param>{{"a", leaf(2, 1)}}, options);
    });
  };
  EXPECT_THAT(
      of_options([](auto& options) { options.bucket_capacity_bytes = 7; }),
      AllOf(
          HasSubstr("rank 0 has 'bucket_capacity_bytes: 26214400'"),
          HasSubstr("rank 1 has 'bucket_capacity_bytes: 7'")));
  EXPECT_THAT(
      of_options([](auto& options) { options.first_bucket_bytes = 7; }),
      HasSubstr("'first_bucket_bytes: 7'"));
  EXPECT_THAT(
      of_options([](auto& options) { options.last_bucket_bytes = 7; }),
      HasSubstr("'last_bucket_bytes: 7'"));
  EXPECT_THAT(
      of_options([](auto& options) { options.order = BucketOrder::kObserved; }),
      HasSubstr("'order: observed'"));
  EXPECT_THAT(
      of_options([](auto& options) { options.reduction = Reduction::kSum; }),
      HasSubstr("'reduction: sum'"));
  EXPECT_THAT(
      of_options([](auto& options) {
        options.missing_gradient = MissingGradient::kZero;
      }),
      HasSubstr("'missing_gradient: zero'"));
  EXPECT_THAT(
      of_options(
          [](auto& options) { options.handover = GradHandover::kMainGrad; }),
      HasSubstr("'handover: main_grad'"));
  EXPECT_THAT(
      of_options(
          [](auto& options) { options.reach = GraphReach::kAsInFirstStep; }),
      HasSubstr("'reach: as_in_first_step'"));
  EXPECT_THAT(
      of_options([](auto& options) { options.hook = bf16_hook(); }),
      HasSubstr("'hook: function "));
}

TEST(RankDifferences, OptionsAndBuffersOfTheWrapperAreNamed) {
  const auto of_wraps = [](const std::function<void(WrapOptions&)>& set,
                           const torch::Tensor& buffer_of_rank_1 = {}) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](CommunicatorPtr world) {
      WrapOptions wrap;
      auto net = std::make_shared<Weight>();
      net->register_buffer("mean", torch::zeros({2}));
      if (world->rank() == 1) {
        set(wrap);
        if (buffer_of_rank_1.defined())
          net->named_buffers()["mean"].set_data(buffer_of_rank_1);
      }
      messages[static_cast<size_t>(world->rank())] =
          message_of<Error>([&] { DataParallel model(net, world, {}, wrap); });
    });
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  };
  EXPECT_THAT(
      of_wraps([](auto& wrap) { wrap.broadcast_buffers = true; }),
      HasSubstr("rank 1 has 'broadcast_buffers: true'"));
  EXPECT_THAT(
      of_wraps([](auto& wrap) { wrap.sync = GradSyncAlgorithm::kPerParam; }),
      HasSubstr("rank 1 has 'sync: per_param'"));
  EXPECT_THAT(
      of_wraps([](auto& wrap) { wrap.ignore = {"mean"}; }),
      AllOf(
          HasSubstr("rank 0 has 'buffer mean: [2] Float'"),
          HasSubstr("rank 1 has 'nothing'")));
  EXPECT_THAT(
      of_wraps([](auto& /*wrap*/) {}, torch::zeros({3})),
      HasSubstr("rank 1 has 'buffer mean: [3] Float'"));
  EXPECT_THAT(
      of_wraps([](auto& wrap) { wrap.mixed_precision = MixedPrecision{}; }),
      HasSubstr("rank 1 has 'mixed_precision: true'"));
}

// The others do not wait for a rank that cannot wrap.
TEST(RankDifferences, AProblemOfOneRankIsAnErrorOnEveryRank) {
  run_ranks(2, [](CommunicatorPtr world) {
    auto a = leaf(2, 1);
    a.set_requires_grad(world->rank() == 0);
    const std::string message = message_of<UsageError>([&] {
      BucketedGradSync sync({{"a", a}}, world);
    });
    EXPECT_THAT(message, HasSubstr("nothing to synchronise"));
    if (world->rank() == 0) {
      EXPECT_THAT(message, HasSubstr("rank 1 cannot wrap its module"));
    }
  });
}

// ---- micro-batches by index

// The elements are copies, as in `for (auto batch : batches)`.
TEST(AccumulateUntilLast, ReducesTheLastByIndex) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(), world);
    const std::vector<double> batches{1, 2, 3};
    size_t index = 0;
    for (auto batch : batches) {
      const auto guard = model.accumulate_until_last(index++, batches.size());
      (model->w * batch * (world->rank() + 1)).sum().backward();
    }
    EXPECT_EQ(model->w.grad()[0].item<double>(), 9.0);
    EXPECT_THAT(
        message_of<UsageError>(
            [&] { const auto guard = model.accumulate_until_last(3, 3); }),
        HasSubstr("a step of 3 micro-batches has none with that index"));
  });
}

// ---- finish() under no_sync()

TEST(Finish, IsRefusedUnderNoSyncAndLosesNothing) {
  run_ranks(2, [&](CommunicatorPtr world) {
    GradSyncOptions options;
    options.finish = FinishMode::kExplicit;
    options.missing_gradient = MissingGradient::kZero;
    auto a = leaf(2, 1);
    auto b = leaf(2, 1);
    const auto sync = make_grad_sync(
        GradSyncAlgorithm::kBucketed, {{"a", a}, {"b", b}}, world, options);
    (a * (world->rank() + 1)).sum().backward();
    {
      const NoSync guard(*sync, NoSync::Mode::kAccumulate);
      EXPECT_THAT(
          message_of<UsageError>([&] { sync->finish(); }),
          HasSubstr("finish() under no_sync()"));
    }
    sync->finish();
    EXPECT_EQ(a.grad()[0].item<double>(), 1.5);
  });
}

// ---- create_graph

TEST(CreateGraph, CountsEachMicroBatchOnce) {
  for (const GradSyncAlgorithm kind : kSyncs) {
    for (const GradHandover handover : kHandovers) {
      for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
        auto w = leaf(2, 1, dtype);
        GradSyncOptions options;
        options.handover = handover;
        options.finish = FinishMode::kExplicit;
        const auto sync =
            make_grad_sync(kind, {{"w", w}}, make_world_of_one(), options);
        for (int m = 0; m < 3; ++m) {
          sync->set_accumulate_only(m < 2);
          (w * w).sum().backward({}, c10::nullopt, /*create_graph=*/true);
        }
        sync->finish();
        EXPECT_EQ(sync->main_grad(0)[0].item<double>(), 6.0);
        w.mutable_grad().reset();  // breaks the cycle of create_graph
      }
    }
  }
}

// ---- the observed order and an optimizer made before it

TEST(ObservedOrder, AnAdamWMadeBeforeTheFirstStepSaysThatItIsStale) {
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.order = BucketOrder::kObserved;
  DataParallel model(std::make_shared<Weight>(), make_world_of_one(), options);
  AdamW stale = make_adamw(model.sync(), 0.0);
  model->w.sum().backward();
  EXPECT_THAT(
      message_of<UsageError>(
          [&] { stale.step(0.1, 1.0, ops::AfterRead::kZero); }),
      AllOf(HasSubstr("bucket 0"), HasSubstr("make it again")));
  AdamW optimizer = make_adamw(model.sync(), 0.0);
  optimizer.step(0.1, 1.0, ops::AfterRead::kZero);
  EXPECT_NEAR(model->w[0].item<double>(), 0.9, 1e-6);
}

TEST(ObservedOrder, OwnedParametersMadeBeforeTheFirstStepSayThatTheyAreStale) {
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.order = BucketOrder::kObserved;
  DataParallel model(std::make_shared<Weight>(), make_world_of_one(), options);
  torch::optim::SGD stale(owned_parameters(model.sync()), 0.1);
  model->w.sum().backward();
  EXPECT_THAT(
      message_of<UsageError>([&] { model.step(stale); }),
      HasSubstr("owned_parameters() were moved"));
  torch::optim::SGD optimizer(owned_parameters(model.sync()), 0.1);
  model.step(optimizer);
  EXPECT_NEAR(model->w[0].item<double>(), 0.9, 1e-6);
}

// ---- steps that change nothing

TEST(Steps, MayChangeNothing) {
  run_ranks(2, [](CommunicatorPtr world) {
    {  // a warm-up that begins at 0
      DataParallel model(std::make_shared<Weight>(), world);
      torch::optim::SGD optimizer(model->parameters(), 0.0);
      for (int step = 0; step < 3; ++step) {
        model->w.sum().backward();
        EXPECT_EQ(model->w.grad()[0].item<double>(), 1.0);
        optimizer.step();
      }
    }
    {  // a step that bf16 rounds away
      DataParallel model(
          std::make_shared<Weight>(torch::kBFloat16, 256.0), world);
      torch::optim::SGD optimizer(model->parameters(), 1e-3);
      for (int step = 0; step < 3; ++step) {
        model->w.sum().backward();
        optimizer.step();
        EXPECT_EQ(model->w[0].item<double>(), 256.0);
      }
    }
    {  // mixed precision that skips the step of an overflow
      DataParallel model(std::make_shared<Weight>(), world);
      (model->w * std::numeric_limits<double>::infinity()).sum().backward();
      model->zero_grad();
      model->w.sum().backward();
      EXPECT_EQ(model->w.grad()[0].item<double>(), 1.0);
    }
  });
}

// Equal gradients in consecutive steps, cleared in between.
TEST(Steps, MayHaveEqualMainGrads) {
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  DataParallel model(std::make_shared<Weight>(), make_world_of_one(), options);
  AdamW optimizer = make_adamw(model.sync(), 0.0);
  for (int step = 0; step < 3; ++step) {
    model->w.sum().backward();
    EXPECT_EQ(model->w.grad()[0].item<double>(), 1.0);
    optimizer.step(0.0, 1.0, ops::AfterRead::kZero);
  }
}

// ---- several and nested backwards

struct TwoParts : torch::nn::Module {
  TwoParts() {
    a = register_parameter("a", torch::ones({2}));
    b = register_parameter("b", torch::ones({2}));
  }
  torch::Tensor a, b;
};

TEST(Backwards, FinishOnceTheyHaveReachedAllParameters) {
  run_ranks(2, [&](CommunicatorPtr world) {
    DataParallel model(std::make_shared<TwoParts>(), world);
    const double factor = world->rank() + 1;
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      (model->a * factor).sum().backward();
      (model->b * factor * 2).sum().backward();
      EXPECT_EQ(model->a.grad()[0].item<double>(), 1.5);
      EXPECT_EQ(model->b.grad()[0].item<double>(), 3.0);
    }
  });
}

TEST(Backwards, ReduceByParameterOnceTheyHaveReachedAllOrFail) {
  run_ranks(2, [&](CommunicatorPtr world) {
    DataParallel model(
        std::make_shared<TwoParts>(),
        world,
        {},
        {.sync = GradSyncAlgorithm::kPerParam});
    const double factor = world->rank() + 1;
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      (model->a * factor).sum().backward();
      (model->b * factor).sum().backward();
      EXPECT_EQ(model->a.grad()[0].item<double>(), 1.5);
      EXPECT_EQ(model->b.grad()[0].item<double>(), 1.5);
    }
    model->zero_grad(/*set_to_none=*/true);
    model->a.sum().backward();
    EXPECT_THAT(
        message_of<UsageError>([&] { (model->b + model->a).sum().backward(); }),
        HasSubstr("the last step was not finished"));
  });
}

TEST(Backwards, NameAParameterTheyNeverReachInTheNextStep) {
  DataParallel model(std::make_shared<TwoParts>(), make_world_of_one());
  model->a.sum().backward();
  EXPECT_THAT(
      message_of<UsageError>([&] { model->a.sum().backward(); }),
      HasSubstr("1 of 2 parameters got no gradient in this step: b"));
}

TEST(Backwards, NeedFinishForAParameterReachedUnderNoSyncAlone) {
  DataParallel model(std::make_shared<TwoParts>(), make_world_of_one());
  const auto step = [&] {
    {
      const auto guard = model.no_sync();
      model->b.sum().backward();
    }
    (model->a * 2).sum().backward();
  };
  step();
  model.finish();
  EXPECT_EQ(model->a.grad()[0].item<double>(), 2.0);
  EXPECT_EQ(model->b.grad()[0].item<double>(), 1.0);
  step();
  EXPECT_THAT(
      message_of<UsageError>([&] { model->a.sum().backward(); }),
      AllOf(HasSubstr("waits for gradients of b"), HasSubstr("call finish()")));
}

// Every block is recomputed in a nested backward.
TEST(Backwards, NestedInARecomputationFinishOnce) {
  const auto recomputed = [](torch::nn::Linear& linear,
                             const torch::Tensor& x) {
    return recompute(
        [linear](const std::vector<torch::Tensor>& inputs) mutable {
          return torch::tanh(linear->forward(inputs[0]));
        },
        {x});
  };
  struct Net : torch::nn::Module {
    Net() {
      first = register_module("first", torch::nn::Linear(3, 3));
      second = register_module("second", torch::nn::Linear(3, 3));
      scale = register_parameter("scale", torch::ones({1}));
      fill_params(*this);
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
    torch::Tensor scale;
  };
  const auto input = [](int rank) { return pseudo_random({2, 3}, 40 + rank); };
  auto alone = std::make_shared<Net>();
  for (int rank = 0; rank < 2; ++rank) {
    const auto y =
        torch::tanh(alone->second(torch::tanh(alone->first(input(rank)))));
    (y.sum() * alone->scale.sum() / 2).backward();
  }
  // If `scale` is frozen, every hook runs in a nested backward.
  for (const bool all_are_nested : {false, true}) {
    for (const auto missing :
         {MissingGradient::kError, MissingGradient::kZero}) {
      run_ranks(2, [&](CommunicatorPtr world) {
        auto net = std::make_shared<Net>();
        net->scale.set_requires_grad(!all_are_nested);
        GradSyncOptions options;
        options.missing_gradient = missing;
        options.bucket_capacity_bytes = 16;
        DataParallel model(net, world, options);
        for (int step = 0; step < 2; ++step) {
          model->zero_grad();
          const auto y = recomputed(
              model->second, recomputed(model->first, input(world->rank())));
          (y.sum() * model->scale.sum()).backward();
          const auto params = model->parameters();
          const auto expected = alone->parameters();
          for (size_t i = 0; i < params.size(); ++i) {
            if (params[i].requires_grad()) {
              EXPECT_TRUE(torch::allclose(
                  params[i].grad(), expected[i].grad(), 1e-5, 1e-6));
            }
          }
        }
      });
    }
  }
}

torch::Tensor recomputed_twice(DataParallel<std::shared_ptr<Weight>>& model) {
  const auto block = [&](const torch::Tensor& x) {
    return recompute(
        [&](const std::vector<torch::Tensor>& inputs) {
          return model->w * inputs[0];
        },
        {x});
  };
  return block(block(torch::ones({2})));
}

// The only parameter is used in two blocks: refused, not lost.
TEST(Backwards, AreRefusedWhereTwoRecomputationsReachAParameter) {
  DataParallel model(std::make_shared<Weight>(), make_world_of_one());
  EXPECT_THAT(
      message_of<UsageError>([&] { recomputed_twice(model).sum().backward(); }),
      AllOf(HasSubstr("ready twice"), HasSubstr("GraphReach::kAsInFirstStep")));
}

// An optimizer would find this rank's own unreduced gradients.
TEST(Backwards, NameAParameterReachedLessOftenThanInTheFirstStep) {
  GradSyncOptions options;
  options.reach = GraphReach::kAsInFirstStep;
  DataParallel model(
      std::make_shared<Weight>(torch::kFloat, 3), make_world_of_one(), options);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  recomputed_twice(model).sum().backward();
  optimizer.step();
  EXPECT_THAT(
      message_of<UsageError>([&] {
        for (int step = 0; step < 2; ++step) {
          model->w.sum().backward();
          optimizer.step();
        }
      }),
      AllOf(
          HasSubstr("weights were stepped while the last step still waited"),
          HasSubstr("gradients of w")));
}

TEST(Backwards, MayReachAParameterSeveralTimesAsInTheFirstStep) {
  for (const GradSyncAlgorithm kind : kSyncs) {
    for (const GradHandover handover : kHandovers) {
      run_ranks(2, [&](CommunicatorPtr world) {
        GradSyncOptions options;
        options.handover = handover;
        options.reach = GraphReach::kAsInFirstStep;
        DataParallel model(
            std::make_shared<Weight>(torch::kFloat, 3),
            world,
            options,
            {.sync = kind});
        for (int step = 0; step < 3; ++step) {
          (recomputed_twice(model) * (world->rank() + 1)).sum().backward();
          EXPECT_EQ(mean_gradient(model), 2 * 3 * 1.5) << step;
          model.reset();
        }
      });
    }
  }
}

// A penalty on the norm of the gradient: a backward through a gradient.
TEST(Backwards, ServeAGradientPenalty) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(std::make_shared<Weight>(torch::kFloat, 2), world);
    auto x = torch::full({2}, world->rank() + 1.0).requires_grad_();
    const auto y = (model->w * model->w * x).sum();
    const auto penalty = torch::autograd::grad(
        {y}, {x}, {}, c10::nullopt, /*create_graph=*/true)[0];
    (y + penalty.sum()).backward();
    // d/dw (w^2 x + w^2) = 2 w x + 2 w
    EXPECT_EQ(model->w.grad()[0].item<double>(), 4 * 1.5 + 4);
  });
}

// ---- reset() after a lost peer

TEST(Reset, LeavesAUsableSyncAfterALostPeer) {
  run_ranks(
      2,
      [&](CommunicatorPtr world) {
        auto a = leaf(16, 1);
        auto b = leaf(16, 1);
        GradSyncOptions options;
        options.bucket_capacity_bytes = 64;
        options.first_bucket_bytes = 64;
        const auto sync = make_grad_sync(
            GradSyncAlgorithm::kBucketed, {{"a", a}, {"b", b}}, world, options);
        if (world->rank() == 1)
          return;
        EXPECT_THROW((a + b).sum().backward(), CommError);
        sync->reset();
        sync->reset();
        EXPECT_THROW((a + b).sum().backward(), CommError);
        sync->reset();
      },
      {.check_collectives = false,
       .timeout = testing::timeout_of_lost_ranks()});
}

// ---- a rank whose loss reaches nothing

TEST(MissingGradients, ARankWhoseLossReachesNothingTakesPartByFinish) {
  run_ranks(3, [&](CommunicatorPtr world) {
    GradSyncOptions options;
    options.missing_gradient = MissingGradient::kZero;
    DataParallel model(std::make_shared<TwoParts>(), world, options);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      if (world->rank() != step) {
        (model->a * 3).sum().backward();
        (void)model->b;
      }
      model.finish();
      EXPECT_EQ(model->a.grad()[0].item<double>(), 2.0) << step;
    }
  });
}

TEST(MissingGradients, StayUndefinedAndUndecayedWhereNoRankHasThem) {
  for (const GradSyncAlgorithm kind : kSyncs) {
    run_ranks(2, [&](CommunicatorPtr world) {
      GradSyncOptions options;
      options.missing_gradient = MissingGradient::kZero;
      DataParallel model(
          std::make_shared<TwoParts>(), world, options, {.sync = kind});
      torch::optim::AdamW optimizer(
          model->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(1));
      for (int step = 0; step < 2; ++step) {
        model->a.sum().backward();
        EXPECT_FALSE(model->b.grad().defined());
        optimizer.step();
      }
      EXPECT_EQ(model->b[0].item<double>(), 1.0);
      EXPECT_LT(model->a[0].item<double>(), 1.0);
    });
  }
}

// ---- what cannot be synchronised

TEST(Refused, ComplexParametersByName) {
  auto complex = torch::ones({2}, torch::kComplexFloat).set_requires_grad(true);
  EXPECT_THAT(
      message_of<UsageError>([&] {
        BucketedGradSync sync({{"phase", complex}}, make_world_of_one());
      }),
      HasSubstr("parameter 'phase' has dtype ComplexFloat: complex"));
}

TEST(Refused, ASparseGradientOfAFunctionIsNamed) {
  auto table = torch::ones({4, 2}).requires_grad_();
  BucketedGradSync sync({{"table", table}}, make_world_of_one());
  EXPECT_THAT(
      message_of<UsageError>([&] {
        torch::embedding(table, torch::tensor({1}), -1, false, /*sparse=*/true)
            .sum()
            .backward();
      }),
      HasSubstr("the gradient of 'table' is sparse"));
}

// ---- mistakes that were aborts

TEST(Mistakes, AreErrorsAndNotAborts) {
  auto w = leaf(2, 1);
  for (const GradSyncAlgorithm kind : kSyncs) {
    const auto sync = make_grad_sync(kind, {{"w", w}}, make_world_of_one(), {});
    for (const int param : {-1, 1}) {
      EXPECT_THAT(
          message_of<UsageError>([&] { sync->mark_ready(param); }),
          HasSubstr("there are 1 parameters"));
    }
    sync->mark_ready(0);
    if (kind == GradSyncAlgorithm::kPerParam)
      continue;
    EXPECT_THAT(
        message_of<UsageError>([&] { sync->mark_ready(0); }),
        HasSubstr("marked ready twice"));
  }

  GradSyncOptions options;
  options.hook = [](BucketView&, Communicator&) -> WorkPtr { return nullptr; };
  BucketedGradSync sync({{"w", w}}, make_world_of_one(), options);
  EXPECT_THAT(
      message_of<Error>([&] { w.sum().backward(); }),
      HasSubstr("returned no Work"));
}

// ---- options of DataParallel

// It would train another way than with buckets, and say nothing.
TEST(WrapOptions, AHookIsRefusedWhereThereAreNoBuckets) {
  const auto refusal = [](const GradSyncOptions& options,
                          const MixedPrecision& precision) {
    return message_of<UsageError>([&] {
      DataParallel model(
          std::make_shared<Weight>(),
          make_world_of_one(),
          options,
          {.sync = GradSyncAlgorithm::kPerParam, .mixed_precision = precision});
    });
  };
  EXPECT_THAT(
      refusal({.hook = bf16_hook()}, {}),
      HasSubstr("a hook (MixedPrecision::reduce_dtype is one) needs buckets"));
  EXPECT_THAT(
      refusal({}, {.reduce_dtype = torch::kBFloat16}),
      HasSubstr("MixedPrecision::reduce_dtype"));
  EXPECT_EQ(refusal({}, {}), "");
}

TEST(WrapOptions, IgnoredParametersAndBuffersAreEachRanksOwn) {
  run_ranks(2, [](CommunicatorPtr world) {
    auto net = std::make_shared<TwoParts>();
    net->register_buffer("mean", torch::full({1}, world->rank() + 1.0));
    {
      const torch::NoGradGuard no_grad;
      net->b.fill_(world->rank());
    }
    DataParallel model(net, world, {}, {.ignore = {"b", "mean"}});
    EXPECT_EQ(model->b[0].item<int>(), world->rank());
    EXPECT_EQ(model->named_buffers()["mean"].item<int>(), world->rank() + 1);
    ((model->a + model->b) * (world->rank() + 1)).sum().backward();
    EXPECT_EQ(model->a.grad()[0].item<double>(), 1.5);
    EXPECT_EQ(model->b.grad()[0].item<double>(), world->rank() + 1.0);
  });
  EXPECT_THAT(
      message_of<UsageError>([] {
        DataParallel model(
            std::make_shared<TwoParts>(),
            make_world_of_one(),
            {},
            {.ignore = {"c"}});
      }),
      HasSubstr("ignore names 'c'"));
}

TEST(WrapOptions, BuffersAreBroadcastBeforeForwardsThatReduce) {
  run_ranks(2, [](CommunicatorPtr world) {
    torch::nn::BatchNorm1d norm(2);
    DataParallel model(norm, world, {}, {.broadcast_buffers = true});
    const auto x = pseudo_random({4, 2}, world->rank());
    for (int step = 0; step < 2; ++step)
      model.forward(x).sum().backward();
    {
      const torch::NoGradGuard no_grad;
      norm->running_mean.fill_(world->rank() * 100);
    }
    const auto before = world->launches();
    {
      const torch::NoGradGuard evaluates;
      model.forward(x);
    }
    {
      const auto guard = model.no_sync();
      model.forward(x);
    }
    EXPECT_EQ(world->launches(), before);
    EXPECT_EQ(norm->running_mean[0].item<double>() > 50, world->rank() == 1);
    model.forward(x);
    EXPECT_LT(norm->running_mean[0].item<double>(), 2);
  });
}

TEST(Hooks, SeeParametersAndGradientsOfTheirBucket) {
  auto a = torch::full({2, 3}, 2.0).requires_grad_();
  GradSyncOptions options;
  int calls = 0;
  options.hook = [&](BucketView& bucket, Communicator& group) {
    ++calls;
    EXPECT_TRUE(bucket.params[0].is_same(a));
    EXPECT_EQ(bucket.grads[0].sizes(), a.sizes());
    EXPECT_EQ(bucket.grads[0].sum().item<double>(), 6.0);
    bucket.grads[0].mul_(2);
    return group.all_reduce(bucket.main_grad);
  };
  BucketedGradSync sync({{"a", a}}, make_world_of_one(), options);
  a.sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(a.grad()[0][0].item<double>(), 2.0);
}

TEST(Hooks, ChainByThen) {
  run_ranks(2, [](CommunicatorPtr world) {
    auto w = leaf(2, 1);
    GradSyncOptions options;
    options.hook = then(all_reduce_hook(), [](BucketView& bucket) {
      bucket.main_grad.clamp_max_(2.5);
    });
    options.reduction = Reduction::kSum;
    BucketedGradSync sync({{"w", w}}, world, options);
    (w * torch::tensor({1.0F, 5.0F})).sum().backward();
    EXPECT_EQ(w.grad()[0].item<double>(), 2.0);
    EXPECT_EQ(w.grad()[1].item<double>(), 2.5);
  });
}

TEST(Hooks, Fp16HalvesTheBytesAndDoesNotOverflowInTheSum) {
  run_ranks(4, [](CommunicatorPtr world) {
    auto w = leaf(64, 0);
    GradSyncOptions options;
    options.hook = fp16_hook();
    options.reduction = Reduction::kSum;
    BucketedGradSync sync({{"w", w}}, world, options);
    world->clear_records();
    (w * 60000.0).sum().backward();  // fp16 ends at 65504
    EXPECT_EQ(w.grad()[0].item<double>(), 240000.0);
    int64_t bytes = 0;
    for (const auto& record : world->records())
      bytes += record.bytes;
    EXPECT_EQ(bytes, 64 * 2);
  });
}

// As large as a sum over many tokens.
TEST(Hooks, Fp16DividesBesidesByWhatItIsGiven) {
  run_ranks(2, [](CommunicatorPtr world) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kGradients}) {
      auto w = leaf(64, 0);
      GradSyncOptions options;
      options.hook = sum_hook(sharding, torch::kHalf, 64);
      options.reduction = Reduction::kSum;
      options.sharding = sharding;
      options.handover = GradHandover::kMainGrad;
      BucketedGradSync sync({{"w", w}}, world, options);
      (w * (61440 * 64)).sum().backward();  // 61440 fits into 16 bits
      EXPECT_EQ(sync.owned_main_grad(0)[0].item<double>(), 2 * 61440 * 64);
    }
  });
}

// Before they are rounded, gradients are divided by the number of ranks once:
// by the mean, or else by the hook. The smallest that are kept are PyTorch's.
TEST(Hooks, Fp16DividesByTheRanksOnce) {
  constexpr double kSmallest = 1.0 / (1 << 24);
  run_ranks(4, [](CommunicatorPtr world) {
    for (const auto reduction : {Reduction::kMean, Reduction::kSum}) {
      for (const auto handover :
           {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
        auto wide = leaf(64, 0);
        auto narrow =
            torch::zeros({64}, torch::kBFloat16).set_requires_grad(true);
        GradSyncOptions options;
        options.hook = fp16_hook();
        options.reduction = reduction;
        options.handover = handover;
        BucketedGradSync sync(
            {{"wide", wide}, {"narrow", narrow}}, world, options);
        // A quarter of the gradient is the smallest number of fp16.
        ((wide * (4 * kSmallest)).sum() + (narrow * (4 * kSmallest)).sum())
            .backward();
        const double expected =
            reduction == Reduction::kMean ? 4 * kSmallest : 16 * kSmallest;
        for (const auto& param : {wide, narrow}) {
          EXPECT_EQ(
              param.grad()[0].item<double>() * sync.grad_scale(), expected)
              << c10::toString(param.scalar_type());
        }
      }
    }
  });
}

}  // namespace
}  // namespace brigade
