#include "brigade/wrap/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"
#include "brigade/ops/linear.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::make_world_of_one;
using testing::run_ranks;

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  fill_params(*net);
  return net;
}

// Four steps on the whole batch by one process against the same rows dealt to
// ranks and micro-batches.
TEST(DataParallel, TrainsAsOneProcessOnTheWholeBatchWould) {
  const auto data = pseudo_random({12, 6}, 50);
  auto expected = make_net();
  torch::optim::AdamW expected_optimizer(expected->parameters(), 0.05);
  for (int step = 0; step < 4; ++step) {
    expected->zero_grad();
    (expected->forward(data).pow(2).sum() / 12).backward();
    expected_optimizer.step();
  }
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](CommunicatorPtr world) {
      DataParallel model(make_net(), world);
      torch::optim::AdamW optimizer(model->parameters(), 0.05);
      const auto mine = data.chunk(ranks)[world->rank()];
      const std::vector<torch::Tensor> micro_batches = mine.chunk(2);
      for (int step = 0; step < 4; ++step) {
        for (size_t i = 0; i < micro_batches.size(); ++i) {
          const auto guard =
              model.accumulate_until_last(i, micro_batches.size());
          (model->forward(micro_batches[i]).pow(2).sum() * ranks / 12)
              .backward();
        }
        model.finish();
        optimizer.step();
      }
      const auto result = model->parameters();
      for (size_t i = 0; i < result.size(); ++i)
        EXPECT_TRUE(
            torch::allclose(result[i], expected->parameters()[i], 1e-5, 1e-6));
    });
  }
}

// The loop that everyone writes: zero_grad(), forward, backward, step.
TEST(DataParallel, APlainSgdLoopGivesTheStepsOfOneProcess) {
  const auto data = pseudo_random({12, 6}, 50);
  auto expected = make_net();
  torch::optim::SGD expected_optimizer(
      expected->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    expected_optimizer.zero_grad();
    expected->forward(data).pow(2).mean().backward();
    expected_optimizer.step();
  }
  for (const bool clears : {false, true}) {
    run_ranks(2, [&](CommunicatorPtr world) {
      DataParallel model(make_net(), world);
      torch::optim::SGD optimizer(
          model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto mine = data.chunk(2)[world->rank()];
      for (int step = 0; step < 5; ++step) {
        if (clears)
          optimizer.zero_grad();
        model->forward(mine).pow(2).mean().backward();
        optimizer.step();
      }
      const auto result = model->parameters();
      for (size_t i = 0; i < result.size(); ++i)
        EXPECT_TRUE(
            torch::allclose(result[i], expected->parameters()[i], 1e-5, 1e-6))
            << clears;
    });
  }
}

TEST(DataParallel, JoinLetsRanksRunOutOfBatchesAtDifferentTimes) {
  run_ranks(2, [](CommunicatorPtr world) {
    DataParallel model(make_net(), world);
    model.allow_uneven_inputs();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 2 + 3 * world->rank(); ++step) {
      optimizer.zero_grad();
      model->forward(pseudo_random({4, 6}, step)).pow(2).mean().backward();
      optimizer.step();
    }
    model.join();
    // Both saw the same batches while both had some; rank 1 alone afterwards,
    // and its model is everyone's in the end.
    auto alone = make_net();
    torch::optim::SGD expected(alone->parameters(), 0.1);
    for (int step = 0; step < 2 + 3; ++step) {
      expected.zero_grad();
      alone->forward(pseudo_random({4, 6}, step)).pow(2).mean().backward();
      expected.step();
    }
    for (size_t i = 0; i < alone->parameters().size(); ++i)
      EXPECT_TRUE(torch::allclose(
          model->parameters()[i], alone->parameters()[i], 1e-5, 1e-6));
  });
}

TEST(DataParallel, ResetDropsGradientsInBothHandovers) {
  for (const auto handover :
       {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
    GradSyncOptions options;
    options.handover = handover;
    DataParallel model(torch::nn::Linear(3, 1), make_world_of_one(), options);
    for (int repeat = 0; repeat < 2; ++repeat) {
      model->forward(torch::ones({2, 3})).sum().backward();
      EXPECT_EQ(model->weight.grad()[0][0].item<float>(), 2.0F);
      model.reset();
    }
  }
}

TEST(DataParallel, BrigadesAdamWGivesTheStepsOfTorchs) {
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    options.finish = FinishMode::kExplicit;
    DataParallel flat(make_net(), world, options);
    AdamW flat_optimizer = make_adamw(flat.sync(), 0.01);
    DataParallel plain(make_net(), world);
    torch::optim::AdamW plain_optimizer(
        plain->parameters(), torch::optim::AdamWOptions(0.05));
    for (int step = 0; step < 4; ++step) {
      const auto x = pseudo_random({4, 6}, 10 * world->rank() + step);
      flat->forward(x).pow(2).sum().backward();
      flat.finish();
      flat_optimizer.step(
          0.05, flat.sync().grad_scale(), ops::AfterRead::kZero);
      flat.reset();
      plain->forward(x).pow(2).sum().backward();
      plain_optimizer.step();
    }
    const auto a = flat->parameters();
    const auto b = plain->parameters();
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-6));
  });
}

TEST(DataParallel, WrapsAnAnyModule) {
  torch::nn::AnyModule any(torch::nn::Linear(3, 1));
  DataParallel model(any, make_world_of_one());
  model->forward(torch::ones({2, 3})).sum().backward();
  EXPECT_EQ(model.module().parameters()[0].grad()[0][0].item<float>(), 2.0F);
}

TEST(DataParallel, ASharedParameterIsSynchronisedOnce) {
  struct Net : torch::nn::Module {
    Net() {
      a = register_parameter("a", torch::ones({2}));
      register_parameter("b", a);
    }
    torch::Tensor a;
  };
  DataParallel model(std::make_shared<Net>(), make_world_of_one());
  EXPECT_EQ(model.sync().params().size(), 1U);
  (model->a * model->a).sum().backward();
  EXPECT_EQ(model->a.grad()[0].item<float>(), 2.0F);
}

TEST(DataParallel, MixedDtypesAndFrozenParametersWork) {
  run_ranks(2, [](CommunicatorPtr world) {
    struct Net : torch::nn::Module {
      Net() {
        half = register_parameter("half", torch::ones({3}, torch::kBFloat16));
        full = register_parameter("full", torch::ones({3}));
        exact = register_parameter("exact", torch::ones({3}, torch::kDouble));
        frozen = register_parameter("frozen", torch::ones({3}), false);
      }
      torch::Tensor half, full, exact, frozen;
    };
    DataParallel model(std::make_shared<Net>(), world);
    const double factor = world->rank() + 1;  // the mean is 1.5
    ((model->half.to(torch::kDouble) + model->full + model->exact +
      model->frozen) *
     factor)
        .sum()
        .backward();
    for (const auto& param : {model->half, model->full, model->exact}) {
      EXPECT_EQ(param.grad().scalar_type(), param.scalar_type());
      EXPECT_EQ(param.grad()[0].item<double>(), 1.5);
    }
    EXPECT_FALSE(model->frozen.grad().defined());
  });
}

TEST(DataParallel, BuffersStartAsRank0s) {
  run_ranks(2, [](CommunicatorPtr world) {
    torch::nn::BatchNorm1d norm(2);
    norm->running_mean.fill_(world->rank() + 1);
    DataParallel model(norm, world);
    EXPECT_EQ(model->running_mean[0].item<float>(), 1.0F);
  });
}

// A linear that adds its weight's gradient into main_grad inside the product.
TEST(DataParallel, FusedWeightGradientsOf256And1SumTo257) {
  struct Net : torch::nn::Module {
    Net() {
      weight =
          register_parameter("weight", torch::zeros({1, 1}, torch::kBFloat16));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      return ops::linear(x, weight, {}, ops::WeightGrad::kAccumulate);
    }
    torch::Tensor weight;
  };
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    options.finish = FinishMode::kExplicit;
    DataParallel model(std::make_shared<Net>(), world, options);
    const auto x = [](double value) {
      return torch::full({1, 1}, value, torch::kBFloat16);
    };
    {
      const auto guard = model.no_sync();
      model->forward(x(256)).sum().backward();
    }
    model->forward(x(1)).sum().backward();
    model.finish();
    EXPECT_EQ(
        model.sync().main_grad(0).item<float>() * model.sync().grad_scale(),
        257.0);
  });
}

// The fused op has added to its own main_grad before any hook runs.
TEST(DataParallel, ASecondBackwardThroughFusedLinearsIsRefused) {
  struct Net : torch::nn::Module {
    Net() {
      for (const char* name : {"first", "second"})
        weights.push_back(register_parameter(name, torch::full({2, 2}, 0.5F)));
    }
    torch::Tensor forward(torch::Tensor x) {
      for (const torch::Tensor& weight : weights)
        x = ops::linear(x, weight, {}, ops::WeightGrad::kAccumulate);
      return x;
    }
    std::vector<torch::Tensor> weights;
  };
  run_ranks(2, [](CommunicatorPtr world) {
    GradSyncOptions options;
    options.handover = GradHandover::kMainGrad;
    DataParallel model(std::make_shared<Net>(), world, options);
    const auto backward = [&] {
      model->forward(torch::ones({1, 2})).sum().backward();
    };
    backward();
    EXPECT_THAT(
        backward,
        ::testing::ThrowsMessage<UsageError>(
            ::testing::HasSubstr("backward() was called twice")));
    model.reset();
    model.sync().zero_main_grads();
    backward();
    model.sync().zero_main_grads();  // as an optimizer that clears does
    EXPECT_NO_THROW(backward());
  });
}

}  // namespace
}  // namespace brigade
