// What users do between backward and the next forward: clip, change or drop
// gradients, read weights after the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <future>
#include <vector>

#include "brigade/base/error.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/wrap/late_gathers.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using testing::gradient_of;
using ::testing::HasSubstr;
using testing::LateGathers;
using testing::run_ranks;
using testing::step_with;
using testing::SyncCase;
using ::testing::ThrowsMessage;
using testing::TwoParams;
using testing::TwoParamsModel;
using testing::wrap_two_params;

class AfterBackward : public ::testing::TestWithParam<SyncCase> {};

TEST_P(AfterBackward, ClipGradValueLimitsTheMean) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (const double sign : {1.0, -1.0}) {
      model.forward(sign * (world->rank() + 1)).backward();
      model.clip_grad_value(2.0);
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), sign * 1.5);
      EXPECT_EQ(gradient_of(model.sync(), 1)[4].item<double>(), sign * 2.0);
      step_with(model, GetParam(), 0.0);
    }
  });
}

// Where gradients are in .grad and in PyTorch's scale, a change of .grad is
// what the optimizer reads; elsewhere it is refused by name.
TEST_P(AfterBackward, AChangeOfGradCountsOrIsRefused) {
  const std::vector<std::function<void(TwoParamsModel&)>> changes = {
      [](TwoParamsModel& model) {
        torch::nn::utils::clip_grad_value_(model->parameters(), 0.5);
      },
      [](TwoParamsModel& model) {
        torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
      },
      [](TwoParamsModel& model) {
        const torch::NoGradGuard no_grad;
        for (auto& param : model->parameters())
          param.mutable_grad().mul_(0.125);
      },
      [](TwoParamsModel& model) {
        const torch::NoGradGuard no_grad;
        for (auto& param : model->parameters())
          param.mutable_grad() = param.grad() * 0.125;
      }};
  for (const auto& change : changes) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      model.forward(world->rank() + 1).backward();
      change(model);
      if (!GetParam().is_main_grad()) {
        EXPECT_LT(gradient_of(model.sync(), 1)[0].item<double>(), 1.0);
        step_with(model, GetParam(), 0.0);
        return;
      }
      EXPECT_THAT(
          [&] { step_with(model, GetParam(), 0.1); },
          ThrowsMessage<UsageError>(AllOf(
              HasSubstr(".grad()"),
              HasSubstr("was changed between the step's"),
              HasSubstr("clip_grad_value()"))));
    });
  }
}

// A user skips a step whose gradients are not finite.
TEST_P(AfterBackward, ZeroGradInsteadOfAStepDropsTheGradients) {
  if (GetParam().dtype != torch::kFloat || !GetParam().is_main_grad())
    return;
  for (const bool to_none : {false, true}) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      torch::optim::SGD optimizer(owned_parameters(model.sync()), 0.5);
      for (const double x : {std::nan(""), 1.0, std::nan(""), 1.0}) {
        model.forward(x * (world->rank() + 1)).backward();
        if (std::isnan(x)) {
          if (!to_none)
            optimizer.zero_grad();
          for (auto& param : optimizer.param_groups().front().params()) {
            if (to_none)
              param.mutable_grad().reset();
          }
          continue;
        }
        EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
        model.step(optimizer);
      }
      const FullWeights whole(model.sync());
      EXPECT_EQ(model->a[2].item<double>(), 1 - 2 * 0.5 * 1.5);
      EXPECT_EQ(model->b[4].item<double>(), 1 - 2 * 0.5 * 3);
    });
  }
}

TEST_P(AfterBackward, WeightsAreInPlaceWhenTheStepReturns) {
  const SyncCase& c = GetParam();
  if (c.sharding == Sharding::kNone || c.sharding == Sharding::kParameters)
    return;
  run_ranks(2, [&](const CommunicatorPtr& world) {
    // A handle that the program holds itself.
    const auto net = std::make_shared<TwoParams>(c.dtype);
    TwoParamsModel model(
        net, std::make_shared<LateGathers>(world), c.options());
    const auto expect_in_place = [&] {
      EXPECT_FALSE(model.sync().weights().are_under_way());
      for (const torch::Tensor& param : net->parameters()) {
        EXPECT_TRUE((param < 1).all().item<bool>());
        auto others = param.detach().clone();
        world->broadcast(others, 0)->wait();
        EXPECT_TRUE(torch::equal(others, param));
      }
    };
    model.forward(world->rank() + 1).backward();
    step_with(model, c, 0.125);
    expect_in_place();
    if (c.dtype == torch::kFloat) {
      torch::optim::Adam optimizer(owned_parameters(model.sync()), 0.125);
      model.forward(world->rank() + 1).backward();
      model.step(optimizer);
      expect_in_place();
    }
  });
}

TEST_P(AfterBackward, WeightsMayBeGatheredDuringForwardByAnOption) {
  const SyncCase& c = GetParam();
  if (c.sharding == Sharding::kNone || c.sharding == Sharding::kParameters)
    return;
  run_ranks(2, [&](const CommunicatorPtr& world) {
    GradSyncOptions options = c.options();
    options.gather = GatherMode::kOverlapForward;
    TwoParamsModel model(
        std::make_shared<TwoParams>(c.dtype),
        std::make_shared<LateGathers>(world),
        options);
    model.forward(world->rank() + 1).backward();
    step_with(model, c, 0.125);
    EXPECT_TRUE(model.sync().weights().are_under_way());
    model.forward(1);
    EXPECT_FALSE(model.sync().weights().are_under_way());
  });
}

// During a step each rank has its own sum.
TEST_P(AfterBackward, ClippingBeforeTheReductionIsLocalOrRefused) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    const auto guard = model.no_sync();
    model.forward(world->rank() + 1).backward();
    if (!GetParam().is_main_grad()) {
      const double norm = model.clip_grad_norm(1.0);
      EXPECT_NEAR(norm, (world->rank() + 1) * std::sqrt(3.0 + 5 * 4), 1e-5);
      return;
    }
    for (const auto& clip : std::vector<std::function<void()>>{
             [&] { model.clip_grad_norm(1.0); },
             [&] { model.clip_grad_value(1.0); }}) {
      EXPECT_THAT(
          [&] { clip(); },
          ThrowsMessage<UsageError>(
              HasSubstr("before the step's gradients are reduced")));
    }
  });
}

// A thread that only runs backward.
TEST_P(AfterBackward, BackwardMayRunOnAnotherThreadThanForward) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 2; ++step) {
      // Backward reads weights.
      auto loss = model.forward(world->rank() + 1);
      loss = loss + (model->a * model->a * model->b.sum()).sum() * 0;
      std::async(std::launch::async, [&] { loss.backward(); }).get();
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
      EXPECT_EQ(gradient_of(model.sync(), 1)[0].item<double>(), 3);
      step_with(model, GetParam(), 0.125);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    AfterBackward,
    ::testing::ValuesIn(testing::all_sync_cases()),
    [](const auto& each) { return name_of(each.param); });

TEST(ExplicitFinish, ComesBeforeAnOptimizersStep) {
  const auto world = testing::make_world_of_one();
  DataParallel<torch::nn::Linear> model(
      torch::nn::Linear(3, 2),
      world,
      {.handover = GradHandover::kMainGrad, .finish = FinishMode::kExplicit});
  AdamW adamw = make_adamw(model.sync(), 0.0);
  model.forward(torch::ones({4, 3})).sum().backward();
  EXPECT_THAT(
      [&] { adamw.step(0.1, 1.0); },
      ThrowsMessage<UsageError>(HasSubstr("with FinishMode::kExplicit after")));
  model.finish();
  EXPECT_NO_THROW(adamw.step(0.1, 1.0));
}

}  // namespace
}  // namespace brigade
