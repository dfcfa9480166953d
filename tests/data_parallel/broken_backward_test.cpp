// After a backward() that threw, and around calls of finish(), the next step is
// right or refused by name. The oracle is a closed form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/optim/sgd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::gradient_of;
using testing::run_ranks;
using testing::step_with;
using testing::SyncCase;
using testing::TwoParamsModel;
using testing::wrap_two_params;
using Uses = testing::TwoParams::Uses;

struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      const torch::autograd::variable_list& /*gradients*/) {
    throw std::runtime_error("a bad batch");
  }
};

// The gradient reaches one parameter, and throws on the way to the other:
// backward visits later nodes of forward first.
void break_a_backward(TwoParamsModel& model) {
  const auto broken = ThrowInBackward::apply(model.forward(1, Uses::kB));
  const auto whole = model.forward(1, Uses::kA);
  EXPECT_THROW((broken + whole).backward(), std::runtime_error);
}

std::string message_of_backward(TwoParamsModel& model, double x) {
  return message_of<UsageError>([&] { model.forward(x).backward(); });
}

class BrokenBackward : public ::testing::TestWithParam<SyncCase> {};

TEST_P(BrokenBackward, IsDroppedByReset) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 2; ++step) {
      break_a_backward(model);
      model.reset();
      model.forward(world->rank() + 1).backward();
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
      EXPECT_EQ(gradient_of(model.sync(), 1)[0].item<double>(), 3);
      step_with(model, GetParam(), 0.0);
    }
  });
}

// Each rank would step its own gradients.
TEST_P(BrokenBackward, LeavesNothingToStepAfterReset) {
  for (const bool is_broken : {false, true}) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      {
        const auto guard = model.no_sync();
        model.forward(world->rank() + 1).backward();
      }
      if (is_broken)
        break_a_backward(model);
      else
        model.forward(world->rank() + 1).backward();
      model.reset();
      step_with(model, GetParam(), 0.125);
      const FullWeights whole(model.sync());
      EXPECT_TRUE(torch::equal(model->a, torch::ones_like(model->a)));
      EXPECT_TRUE(torch::equal(model->b, torch::ones_like(model->b)));
    });
  }
}

TEST_P(BrokenBackward, IsRefusedByTheNextWithoutReset) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    break_a_backward(model);
    // With kParameters the next forward may already refuse.
    EXPECT_THAT(
        message_of_backward(model, 1),
        ::testing::HasSubstr("call reset() of DataParallel"));
    model.reset();
    model.forward(world->rank() + 1).backward();
    EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
  });
}

TEST_P(BrokenBackward, LeavesWhatZeroGradDropsUnderNoSync) {
  if (divides_gradients(GetParam().sharding))
    return;  // every micro-batch is reduced: refused as above
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    {
      const auto guard = model.no_sync();
      break_a_backward(model);
    }
    model->zero_grad();
    model.forward(world->rank() + 1).backward();
    EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
    EXPECT_EQ(gradient_of(model.sync(), 1)[0].item<double>(), 3);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    BrokenBackward,
    ::testing::ValuesIn(testing::all_sync_cases()),
    [](const auto& each) { return name_of(each.param); });

// Steps of MissingGradient::kZero in which a rank has no loss.
class FinishWithoutALoss : public ::testing::TestWithParam<SyncCase> {};

std::vector<SyncCase> cases_with_zero() {
  auto cases = testing::all_sync_cases();
  std::erase_if(cases, [](const SyncCase& c) {
    return c.missing != MissingGradient::kZero;
  });
  return cases;
}

// finish() is called once in a step without a loss, at any place; steps that
// backward ends need none.
TEST_P(FinishWithoutALoss, IsAStepOfItsOwnAfterAnOptimizersStep) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (const bool has_loss : {true, false, true, false, false, true}) {
      if (has_loss || world->rank() == 0)
        model.forward(world->rank() + 1).backward();
      else
        model.finish();
      const double mean = has_loss ? 1.5 : 0.5;
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), mean);
      EXPECT_EQ(gradient_of(model.sync(), 1)[0].item<double>(), 2 * mean);
      step_with(model, GetParam(), 0.125);
    }
  });
}

TEST_P(FinishWithoutALoss, IsAStepOfItsOwnAfterASkippedOne) {
  for (const bool to_none : {false, true}) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      model.forward(100).backward();
      model->zero_grad(to_none);
      if (world->rank() == 0)
        model.forward(1).backward();
      else
        model.finish();
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 0.5);
    });
  }
}

TEST_P(FinishWithoutALoss, DoesNothingRightAfterABackward) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    for (int step = 0; step < 3; ++step) {
      model.forward(world->rank() + 1).backward();
      if (world->rank() == 1)
        model.finish();
      EXPECT_EQ(gradient_of(model.sync(), 0)[0].item<double>(), 1.5);
      step_with(model, GetParam(), 0.0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    FinishWithoutALoss,
    ::testing::ValuesIn(cases_with_zero()),
    [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace brigade
