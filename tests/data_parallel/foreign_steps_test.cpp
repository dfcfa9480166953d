// With flat gradients (GradHandover::kMainGrad) a step that the sync was not
// told about is right, or refused by name, however the gradients are cleared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AnyOf;
using testing::gradient_of;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::SyncCase;
using testing::TwoParams;
using testing::TwoParamsModel;
using testing::wrap_two_params;

constexpr double kRate = 0.125;

std::vector<SyncCase> main_grad_cases() {
  auto cases = testing::all_sync_cases();
  std::erase_if(cases, [](const SyncCase& c) { return !c.is_main_grad(); });
  return cases;
}

class ForeignSteps : public ::testing::TestWithParam<SyncCase> {
 protected:
  static bool is_sharded() { return GetParam().sharding != Sharding::kNone; }
};

// Ways to clear gradients between steps.
using Clear = std::function<void(TwoParamsModel&, torch::optim::Optimizer&)>;
const std::vector<Clear>& ways_to_clear() {
  static const std::vector<Clear> ways = {
      [](TwoParamsModel& model, torch::optim::Optimizer&) {
        model->zero_grad(/*set_to_none=*/false);
      },
      [](TwoParamsModel& model, torch::optim::Optimizer&) {
        model->zero_grad(/*set_to_none=*/true);
      },
      [](TwoParamsModel&, torch::optim::Optimizer& optimizer) {
        for (auto& group : optimizer.param_groups()) {
          for (auto& param : group.params())
            param.mutable_grad().reset();
        }
      },
      [](TwoParamsModel&, torch::optim::Optimizer&) {}};
  return ways;
}

void expect_weights(TwoParamsModel& model, double a, double b) {
  const FullWeights whole(model.sync());
  EXPECT_TRUE((model->a == a).all().item<bool>()) << model->a;
  EXPECT_TRUE((model->b == b).all().item<bool>()) << model->b;
}

TEST_P(ForeignSteps, AreRefusedOverTheModulesParameters) {
  for (const Clear& clear : ways_to_clear()) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      torch::optim::SGD optimizer(model->parameters(), kRate);
      model.forward(world->rank() + 1).backward();
      EXPECT_THAT(
          message_of<UsageError>([&] {
            optimizer.step();
            clear(model, optimizer);
            model.forward(world->rank() + 1).backward();
          }),
          AnyOf(
              HasSubstr("step the weights by DataParallel::step()"),
              HasSubstr("was written in place")));
    });
  }
}

TEST_P(ForeignSteps, AreRefusedOverOwnedParameters) {
  if (GetParam().dtype != torch::kFloat)
    return;
  for (const Clear& clear : ways_to_clear()) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      TwoParamsModel model = wrap_two_params(GetParam(), world);
      torch::optim::SGD optimizer(owned_parameters(model.sync()), kRate);
      model.forward(world->rank() + 1).backward();
      optimizer.step();
      model.gather_weights();
      clear(model, optimizer);
      EXPECT_THAT(
          message_of<UsageError>(
              [&] { model.forward(world->rank() + 1).backward(); }),
          HasSubstr("step the weights by DataParallel::step()"));
    });
  }
}

TEST_P(ForeignSteps, AreRefusedByAnotherModelsOptimizer) {
  if (GetParam().dtype != torch::kFloat)
    return;
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel one = wrap_two_params(GetParam(), world);
    TwoParamsModel other = wrap_two_params(GetParam(), world);
    torch::optim::SGD optimizer(owned_parameters(other.sync()), kRate);
    one.forward(world->rank() + 1).backward();
    other.forward(world->rank() + 1).backward();
    EXPECT_THAT(
        message_of<UsageError>([&] { one.step(optimizer); }),
        HasSubstr("over owned_parameters() of another DataParallel"));
    other.step(optimizer);
    expect_weights(other, 1 - kRate * 1.5, 1 - kRate * 3);
  });
}

// Unless gradients are divided, .grad is complete, and model.step() over the
// module's own parameters is right.
TEST_P(ForeignSteps, AreRightOrRefusedByStepOverTheModulesParameters) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    torch::optim::SGD optimizer(model->parameters(), kRate);
    for (int step = 1; step <= 2; ++step) {
      model.forward(world->rank() + 1).backward();
      if (divides_gradients(GetParam().sharding)) {
        EXPECT_THAT(
            message_of<UsageError>([&] { model.step(optimizer); }),
            HasSubstr("'a' is the module's own parameter"));
        return;
      }
      model.step(optimizer);
      expect_weights(model, 1 - step * kRate * 1.5, 1 - step * kRate * 3);
    }
  });
}

TEST_P(ForeignSteps, AreRightForSumsWithoutSharding) {
  if (is_sharded())
    return;
  for (const Clear& clear : ways_to_clear()) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      GradSyncOptions options = GetParam().options();
      options.reduction = Reduction::kSum;
      TwoParamsModel model(
          std::make_shared<TwoParams>(GetParam().dtype),
          world,
          options,
          {.sync = GetParam().sync});
      torch::optim::SGD optimizer(model->parameters(), kRate);
      std::string message;
      for (int step = 1; step <= 2 && message.empty(); ++step) {
        message = message_of<UsageError>(
            [&] { model.forward(world->rank() + 1).backward(); });
        if (!message.empty())
          break;
        optimizer.step();
        clear(model, optimizer);
        expect_weights(model, 1 - step * kRate * 3, 1 - step * kRate * 6);
      }
      // Nobody cleared the gradients.
      EXPECT_THAT(
          message,
          AnyOf("", HasSubstr("used the gradients and did not clear them")));
    });
  }
}

// Follows the remedies that the message names.
TEST_P(ForeignSteps, AreRightByHandOnceTheGradientsAreDropped) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    GradSync& sync = model.sync();
    for (int step = 1; step <= 2; ++step) {
      model.forward(world->rank() + 1).backward();
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < sync.params().size(); ++i) {
          const RunPart& part = sync.params()[i].owned;
          sync.segments()[part.run]
              .owned_weight()
              .narrow(0, part.offset, part.numel)
              .sub_(
                  sync.owned_main_grad(static_cast<int>(i)),
                  kRate * sync.grad_scale());
        }
      }
      if (step == 1)
        sync.zero_main_grads();
      else
        model.reset();
      model.gather_weights();
      expect_weights(model, 1 - step * kRate * 1.5, 1 - step * kRate * 3);
    }
  });
}

// Two optimizers step at different times; gradients that were not stepped start
// from zero too.
TEST_P(ForeignSteps, LeaveNoGradientsBehindWithSomeParametersAlone) {
  const std::vector<int64_t> capacities = {16, 1 << 20};  // bucket bytes
  for (const int64_t capacity : capacities) {
    run_ranks(3, [&](const CommunicatorPtr& world) {
      GradSyncOptions options = GetParam().options();
      options.bucket_capacity_bytes = capacity;
      options.first_bucket_bytes = capacity;
      options.last_bucket_bytes = capacity;
      TwoParamsModel model(
          std::make_shared<TwoParams>(GetParam().dtype),
          world,
          options,
          {.sync = GetParam().sync});
      AdamW of_a =
          make_adamw(model.sync(), {AdamWParams{.params = {model->a}}});
      AdamW of_b =
          make_adamw(model.sync(), {AdamWParams{.params = {model->b}}});
      for (const double x : {1.0, 2.0, 4.0, 8.0}) {
        model.forward(x * (world->rank() + 1)).backward();
        EXPECT_EQ(gradient_of(model.sync(), 0)[2].item<double>(), 2 * x);
        EXPECT_EQ(gradient_of(model.sync(), 1)[4].item<double>(), 4 * x);
        AdamW& optimizer = x < 3 ? of_a : of_b;
        optimizer.step(0.125, model.sync().grad_scale());
        model.gather_weights();
      }
    });
  }
}

// One optimizer for matrices and one for the rest, both in each step.
TEST_P(ForeignSteps, MayComeFromTwoOptimizersInOneStep) {
  if (GetParam().dtype != torch::kFloat)
    return;
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(GetParam(), world);
    const auto over = [&](const torch::Tensor& param, double rate) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(
          std::vector{param}, std::make_unique<torch::optim::SGDOptions>(rate));
      return torch::optim::SGD(
          owned_parameters(model.sync(), std::move(groups)),
          torch::optim::SGDOptions(rate));
    };
    auto of_a = over(model->a, kRate);
    auto of_b = over(model->b, 2 * kRate);
    for (int step = 1; step <= 2; ++step) {
      model.forward(world->rank() + 1).backward();
      model.step(of_a);
      model.step(of_b);
      expect_weights(model, 1 - step * kRate * 1.5, 1 - step * 2 * kRate * 3);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    ForeignSteps,
    ::testing::ValuesIn(main_grad_cases()),
    [](const auto& each) { return name_of(each.param); });

}  // namespace
}  // namespace brigade
