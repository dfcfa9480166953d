// A gradient that the program writes before backward() counts, as in PyTorch;
// one that a step has used does not. The oracle is a closed form.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "tests/data_parallel/sync_cases.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::gradient_of;
using testing::run_ranks;
using testing::step_with;
using testing::SyncCase;
using testing::TwoParamsModel;
using testing::wrap_two_params;

class GradByHand : public ::testing::TestWithParam<SyncCase> {};

void expect_mean(TwoParamsModel& model, double a, double b) {
  EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), a);
  EXPECT_EQ(gradient_of(model.sync(), 1)[4].item<double>(), b);
}

TEST_P(GradByHand, CountsBeforeTheFirstBackwardAndAfterAStep) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 2; ++step) {
      for (auto& param : model->parameters())
        param.mutable_grad() = torch::full_like(param, 10);
      model.forward(world->rank() + 1).backward();
      expect_mean(model, 11.5, 13);
      step_with(model, GetParam(), 0.0);
    }
  });
}

TEST_P(GradByHand, CountsInPlaceAfterZeroGrad) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 3; ++step) {
      model.forward(world->rank() + 1).backward();
      expect_mean(model, step == 0 ? 1.5 : 11.5, step == 0 ? 3 : 13);
      step_with(model, GetParam(), 0.0);
      model->zero_grad(/*set_to_none=*/false);  // the default of 1.13
      const torch::NoGradGuard no_grad;
      for (auto& param : model->parameters())
        param.mutable_grad().add_(10);
    }
  });
}

TEST_P(GradByHand, AStepsGradientDoesNotCountInTheNext) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 3; ++step) {
      model.forward(world->rank() + 1).backward();
      expect_mean(model, 1.5, 3);
      model.clip_grad_norm(1.0);
      if (step == 1)
        model.reset();
      else
        step_with(model, GetParam(), 0.0);
    }
  });
}

// Changes before the step that uses it make no difference.
TEST_P(GradByHand, AScaledOrReplacedGradientDoesNotCountInTheNextStep) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 4; ++step) {
      model.forward(world->rank() + 1).backward();
      expect_mean(model, 1.5, 3);
      {
        const torch::NoGradGuard no_grad;
        for (auto& param : model->parameters()) {
          if (step % 2 == 0)
            param.mutable_grad().mul_(0.5);
          else
            param.mutable_grad() = param.grad() * 0.5;
        }
      }
      step_with(model, GetParam(), 0.0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    GradByHand,
    ::testing::ValuesIn([] {
      auto cases = testing::all_sync_cases();
      std::erase_if(cases, [](const SyncCase& c) { return c.is_main_grad(); });
      return cases;
    }()),
    [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace brigade
