// Weights of ZeRO's stage 3 that are read, written and stepped where they must
// not be: nothing is lost in silence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <string>

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

using HeldModel = DataParallel<torch::nn::Sequential>;

torch::nn::Sequential make_held_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(5, 6),
      torch::nn::Linear(6, 6),
      torch::nn::Linear(6, 2));
  fill_params(*net);
  return net;
}

HeldModel make_held(const CommunicatorPtr& world) {
  return {
      make_held_net(),
      world,
      {.handover = GradHandover::kMainGrad, .sharding = Sharding::kParameters}};
}

torch::Tensor held_data(int rank) {
  return pseudo_random({3, 5}, rank);
}

std::vector<torch::Tensor> whole_values(HeldModel& model) {
  const FullWeights whole(model.sync());
  std::vector<torch::Tensor> values;
  for (const auto& param : model->parameters())
    values.push_back(param.detach().clone());
  return values;
}

TEST(FullWeights, AStepMeanwhileIsAnErrorAndIsNotLost) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto model = make_held(world);
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    const auto backward = [&] {
      model.forward(held_data(world->rank())).square().mean().backward();
    };
    backward();
    const auto before = whole_values(model);
    {
      const FullWeights whole(model.sync());
      optimizer.step(0.1, 0.5, ops::AfterRead::kZero);
    }
    EXPECT_THAT(
        message_of<UsageError>(backward),
        HasSubstr("while a brigade::FullWeights lived"));
    // Said once; what was stepped is there.
    model.reset();
    const auto after = whole_values(model);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_FALSE(torch::equal(before[i], after[i])) << i;
    EXPECT_EQ(message_of<UsageError>(backward), "");
  });
}

// torch::optim raises no version.
TEST(FullWeights, AStepOfATorchOptimizerMeanwhileIsAnErrorAtOnce) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto model = make_held(world);
    torch::optim::SGD optimizer(owned_parameters(model.sync()), 0.1);
    model.forward(held_data(world->rank())).square().mean().backward();
    const FullWeights whole(model.sync());
    EXPECT_THAT(
        message_of<UsageError>([&] { model.step(optimizer); }),
        HasSubstr("stepped the weights while a brigade::FullWeights lived"));
  });
}

TEST(FullWeights, MayLieInOneAnotherAndKeepWhatIsWritten) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto model = make_held(world);
    const auto before = whole_values(model);
    {
      const FullWeights outer(model.sync());
      {
        const FullWeights inner(model.sync());
        const torch::NoGradGuard no_grad;
        for (auto& param : model->parameters())
          param.mul_(2);
      }
      const torch::NoGradGuard no_grad;
      for (auto& param : model->parameters())
        param.add_(1);
      model.forward(held_data(0));
    }
    const auto after = whole_values(model);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(torch::equal(after[i], before[i] * 2 + 1)) << i;
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model.forward(held_data(0)).isnan().any().item<bool>());
  });
}

// As torch::nn::init and moving averages do it.
TEST(ShardedWeightsInPlace, WritesOutsideOfFullWeightsAreNamed) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    auto model = make_held(world);
    {
      const torch::NoGradGuard no_grad;
      torch::nn::init::constant_(model->parameters()[2], 0.5);
    }
    EXPECT_THAT(
        message_of<UsageError>([&] { model.forward(held_data(0)); }),
        HasSubstr("'1.weight' was written in place"));
    {
      const FullWeights whole(model.sync());
      torch::nn::init::constant_(model->parameters()[2], 0.5);
    }
    EXPECT_EQ(message_of<UsageError>([&] { model.forward(held_data(0)); }), "");
    const auto values = whole_values(model);
    EXPECT_TRUE(torch::equal(values[2], torch::full({6, 6}, 0.5)));
  });
}

// As a program does that logs a norm on rank 0 between forward and backward:
// its gathers meet others, of other sizes, or nobody's. On a machine so loaded
// that wrapping itself takes the short timeout, that error is as good.
TEST(ShardedWeights, AReadOnOneRankAloneEndsInAnErrorAndNoAbort) {
  run_ranks(
      2,
      [](const CommunicatorPtr& world) {
        bool is_wrapped = false;
        const std::string message = message_of<CommError>([&] {
          auto model = make_held(world);
          is_wrapped = true;
          for (int step = 0; step < 3; ++step) {
            auto loss = model.forward(held_data(world->rank())).pow(2).mean();
            if (world->rank() == 0) {
              const torch::NoGradGuard no_grad;
              for (const auto& param : model->parameters())
                param.norm();
            }
            loss.backward();
          }
        });
        EXPECT_FALSE(message.empty());
        if (is_wrapped) {
          EXPECT_THAT(
              message,
              ::testing::AnyOf(
                  HasSubstr("all_gather"), HasSubstr("reduce_scatter")));
        }
      },
      {.check_collectives = false, .timeout = std::chrono::seconds(3)});
}

TEST(ShardedWeights, AUnitThatThereIsNotOrThatNobodyHoldsIsAnErrorAndNoAbort) {
  auto model = make_held(make_world_of_one());
  ShardedWeights& weights = *model.sync().weights().units();
  EXPECT_THAT(
      message_of<UsageError>([&] { weights.let_go(1); }),
      HasSubstr("let_go(1): nobody holds that unit"));
  for (const int unit : {-1, 3}) {
    EXPECT_THAT(
        message_of<UsageError>([&] { weights.use(unit); }),
        HasSubstr("have units 0 to 2, and no unit " + std::to_string(unit)));
    EXPECT_THAT(
        message_of<UsageError>([&] { weights.hold(unit); }),
        HasSubstr("no unit"));
    EXPECT_THAT(
        message_of<UsageError>([&] { weights.let_go(unit); }),
        HasSubstr("no unit"));
  }
}

}  // namespace
}  // namespace brigade
