// Optimizers that step in backward, bucket by bucket, give the same bits as
// stepping afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;

torch::nn::Sequential make_stepped_net(torch::Dtype dtype = torch::kFloat) {
  torch::nn::Sequential net(
      torch::nn::Linear(6, 8),
      torch::nn::Tanh(),
      torch::nn::Linear(8, 8),
      torch::nn::Tanh(),
      torch::nn::Linear(8, 2));
  net->to(dtype);
  fill_params(*net);
  return net;
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(
    std::vector<torch::Tensor> params)>;

std::vector<MakeOptimizer> elementwise_optimizers() {
  return {
      [](auto params) {
        return std::make_unique<torch::optim::SGD>(
            params,
            torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
      },
      [](auto params) {
        return std::make_unique<torch::optim::Adam>(
            params, torch::optim::AdamOptions(0.05).amsgrad(true));
      },
      [](auto params) {
        return std::make_unique<torch::optim::AdamW>(
            params, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
      },
      [](auto params) {
        return std::make_unique<torch::optim::RMSprop>(
            params, torch::optim::RMSpropOptions(0.01).momentum(0.9));
      },
      [](auto params) {
        return std::make_unique<torch::optim::Adagrad>(
            params, torch::optim::AdagradOptions(0.1));
      }};
}

enum class Stepping { kInBackward, kAfterwards };

struct SteppedRun {
  GradSyncOptions options;
  std::optional<MixedPrecision> precision;
};

// The weights after some steps of two micro-batches.
std::vector<torch::Tensor> train_stepped(
    const CommunicatorPtr& world,
    const MakeOptimizer& make,
    Stepping stepping,
    const SteppedRun& run) {
  WrapOptions wrap;
  wrap.mixed_precision = run.precision;
  DataParallel model(make_stepped_net(), world, run.options, wrap);
  auto optimizer = make(model->parameters());
  if (stepping == Stepping::kInBackward)
    model.step_in_backward(*optimizer);
  for (int step = 0; step < 4; ++step) {
    for (int m = 0; m < 2; ++m) {
      const auto guard = model.accumulate_until_last(static_cast<size_t>(m), 2);
      const auto x = pseudo_random({4, 6}, 20 * step + 4 * m + world->rank());
      model.forward(x).pow(2).mean().backward();
    }
    if (stepping == Stepping::kAfterwards) {
      optimizer->step();
    } else {
      for (const auto& param : model->parameters())
        EXPECT_FALSE(param.grad().defined());
    }
  }
  return model->parameters();
}

void expect_equal_bits(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << "parameter " << i;
}

TEST(StepInBackward, GivesTheBitsOfSteppingAfterwards) {
  SteppedRun small_buckets;
  small_buckets.options.bucket_capacity_bytes = 64;
  small_buckets.options.first_bucket_bytes = 64;
  SteppedRun observed = small_buckets;
  observed.options.order = BucketOrder::kObserved;
  SteppedRun missing_is_zero = small_buckets;
  missing_is_zero.options.missing_gradient = MissingGradient::kZero;
  SteppedRun mixed = small_buckets;
  mixed.precision = MixedPrecision{};
  for (const SteppedRun& run :
       {SteppedRun{}, small_buckets, observed, missing_is_zero, mixed}) {
    run_ranks(2, [&](CommunicatorPtr world) {
      for (const MakeOptimizer& make : elementwise_optimizers()) {
        expect_equal_bits(
            train_stepped(world, make, Stepping::kInBackward, run),
            train_stepped(world, make, Stepping::kAfterwards, run));
      }
    });
  }
}

// With one rank every reduction is done at once.
TEST(StepInBackward, StepsABucketBeforeBackwardReachesTheNext) {
  auto net = make_stepped_net();
  GradSyncOptions options;
  options.bucket_capacity_bytes = 64;
  options.first_bucket_bytes = 64;
  DataParallel model(net, make_world_of_one(), options);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  model.step_in_backward(optimizer);
  auto params = net->parameters();
  const auto last_before = params.back().detach().clone();
  bool was_stepped = false;
  params.front().register_hook([&](const torch::Tensor&) {
    was_stepped = !torch::equal(params.back(), last_before);
  });
  net->forward(pseudo_random({4, 6}, 1)).pow(2).mean().backward();
  EXPECT_TRUE(was_stepped);
  // Steps are the program's own again.
  model.step_after_backward();
  const auto before = params.back().detach().clone();
  net->forward(pseudo_random({4, 6}, 1)).pow(2).mean().backward();
  EXPECT_TRUE(torch::equal(params.back(), before));
  EXPECT_TRUE(params.back().grad().defined());
}

TEST(StepInBackward, BrigadesAdamWGivesTheBitsOfSteppingAfterwards) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const auto finish :
         {FinishMode::kAtEndOfBackward, FinishMode::kExplicit}) {
      run_ranks(2, [&](CommunicatorPtr world) {
        const auto train = [&](Stepping stepping) {
          GradSyncOptions options;
          options.handover = GradHandover::kMainGrad;
          options.bucket_capacity_bytes = 64;
          options.finish = finish;
          DataParallel model(make_stepped_net(dtype), world, options);
          AdamW optimizer = make_adamw(model.sync(), 0.1);
          for (int step = 0; step < 4; ++step) {
            const double lr = 0.05 / (step + 1);
            if (stepping == Stepping::kInBackward)
              model.step_in_backward(optimizer, lr);
            for (int m = 0; m < 2; ++m) {
              const auto guard =
                  model.accumulate_until_last(static_cast<size_t>(m), 2);
              const auto x =
                  pseudo_random({4, 6}, 20 * step + 4 * m + world->rank());
              model->forward(x.to(dtype)).pow(2).mean().backward();
            }
            model.finish();
            if (stepping == Stepping::kAfterwards)
              optimizer.step(
                  lr, model.sync().grad_scale(), ops::AfterRead::kZero);
          }
          EXPECT_EQ(optimizer.steps(), 4);
          return model->parameters();
        };
        expect_equal_bits(
            train(Stepping::kInBackward), train(Stepping::kAfterwards));
      });
    }
  }
}

// A parameter that no rank used is not decayed; one that another rank used is.
TEST(StepInBackward, UnusedParametersAreLeftAlone) {
  struct Parts : torch::nn::Module {
    Parts() {
      a = register_parameter("a", torch::ones({2}));
      b = register_parameter("b", torch::ones({2}));
      c = register_parameter("c", torch::ones({2}));
    }
    torch::Tensor a, b, c;
  };
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.missing_gradient = MissingGradient::kZero;
    options.bucket_capacity_bytes = 8;
    options.first_bucket_bytes = 8;
    DataParallel model(std::make_shared<Parts>(), world, options);
    torch::optim::AdamW optimizer(
        model->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(1));
    model.step_in_backward(optimizer);
    for (int step = 0; step < 2; ++step)
      (world->rank() == 0 ? model->c + model->a : model->c).sum().backward();
    EXPECT_LT(model->a[0].item<double>(), 0.9);
    EXPECT_EQ(model->b[0].item<double>(), 1.0);
    EXPECT_LT(model->c[0].item<double>(), 0.9);
  });
}

// Gradients of the others would be dropped, bucket by bucket.
TEST(StepInBackward, AnOptimizerOfSomeParametersAloneIsRefused) {
  DataParallel model(make_stepped_net(), make_world_of_one());
  auto params = model->parameters();
  torch::optim::SGD of_head({params[4], params[5]}, 0.1);
  EXPECT_THAT(
      message_of<UsageError>([&] { model.step_in_backward(of_head); }),
      HasSubstr("lacks '0.weight'"));
}

TEST(StepInBackward, RefusesOptimizersThatCannotStepInBackward) {
  const auto main_grad = [](auto... set) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    (set(options), ...);
    return options;
  };
  {
    DataParallel model(make_stepped_net(), make_world_of_one());
    torch::optim::LBFGS lbfgs(model->parameters());
    EXPECT_THAT(
        message_of<UsageError>([&] { model.step_in_backward(lbfgs); }),
        HasSubstr("LBFGS"));
  }
  {
    DataParallel model(make_stepped_net(), make_world_of_one(), main_grad());
    torch::optim::SGD sgd(model->parameters(), 0.1);
    EXPECT_THAT(
        message_of<UsageError>([&] { model.step_in_backward(sgd); }),
        HasSubstr("handover = GradHandover::kParamDtype"));
    DataParallel other(make_stepped_net(), make_world_of_one(), main_grad());
    AdamW of_other = make_adamw(other.sync(), 0.0);
    EXPECT_THAT(
        message_of<UsageError>([&] { model.step_in_backward(of_other, 0.1); }),
        HasSubstr("make_adamw(model.sync(), ...)"));
  }
  {
    DataParallel model(
        make_stepped_net(), make_world_of_one(), main_grad([](auto& options) {
          options.order = BucketOrder::kObserved;
        }));
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    EXPECT_THAT(
        message_of<UsageError>([&] { model.step_in_backward(optimizer, 0.1); }),
        HasSubstr("order = kObserved"));
  }
  DataParallel model(
      make_stepped_net(), make_world_of_one(), main_grad([](auto& options) {
        options.sharding = Sharding::kOptimizer;
      }));
  AdamW optimizer = make_adamw(model.sync(), 0.0);
  EXPECT_THAT(
      message_of<UsageError>([&] { model.step_in_backward(optimizer, 0.1); }),
      HasSubstr("sharding = optimizer"));
}

}  // namespace
}  // namespace brigade
