// Several backwards within a step add up, as in PyTorch; after the optimizer's
// step gradients start from zero. The oracle is a closed form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <utility>

#include "brigade/base/error.h"
#include "tests/data_parallel/sync_cases.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::gradient_of;
using testing::run_ranks;
using testing::step_with;
using testing::SyncCase;
using testing::TwoParams;
using testing::TwoParamsModel;
using testing::wrap_two_params;
using Uses = TwoParams::Uses;

class AddingBackwards : public ::testing::TestWithParam<SyncCase> {
 protected:
  // Runs `body` on 1, 2 and 3 ranks. `factor` is the rank's own factor, and
  // `mean` its mean over the ranks.
  static void on_ranks(
      const std::function<void(TwoParamsModel&, double factor, double mean)>&
          body) {
    for (const int ranks : {1, 2, 3}) {
      run_ranks(ranks, [&](const CommunicatorPtr& world) {
        TwoParamsModel model = wrap_two_params(GetParam(), world);
        body(model, world->rank() + 1, (ranks + 1) / 2.0);
      });
    }
  }
};

void expect_gradients(TwoParamsModel& model, double a, double b) {
  const double tolerance = 1e-6 * (std::abs(a) + std::abs(b));
  for (int param = 0; param < 2; ++param) {
    const double expected = param == 0 ? a : b;
    const auto gradient = gradient_of(model.sync(), param);
    EXPECT_LE((gradient - expected).abs().max().item<double>(), tolerance)
        << "parameter " << param << ": " << gradient[0].item<double>()
        << ", expected " << expected;
  }
}

TEST_P(AddingBackwards, AddUpWithinAStep) {
  on_ranks([](TwoParamsModel& model, double factor, double mean) {
    for (const double x : {1.0, 2.0, 4.0})
      model.forward(x * factor).backward();
    expect_gradients(model, 7 * mean, 14 * mean);
  });
}

TEST_P(AddingBackwards, AddUpWhereABackwardBetweenThemThrew) {
  on_ranks([](TwoParamsModel& model, double factor, double mean) {
    model.forward(1 * factor).backward();
    bool throws = true;
    model.sync().before_step([&] {
      if (std::exchange(throws, false))
        throw ConfigError("not now");
    });
    EXPECT_THROW(model.forward(2 * factor).backward(), ConfigError);
    model.forward(2 * factor).backward();
    model.sync().before_step({});
    expect_gradients(model, 3 * mean, 6 * mean);
  });
}

TEST_P(AddingBackwards, StartFromZeroAfterAStep) {
  for (const double lr : {0.0, 0.125}) {
    on_ranks([&](TwoParamsModel& model, double factor, double mean) {
      for (const double x : {1.0, 2.0, 4.0}) {
        model.forward(x * factor).backward();
        expect_gradients(model, x * mean, 2 * x * mean);
        step_with(model, GetParam(), lr);
      }
    });
  }
}

TEST_P(AddingBackwards, AddUpWithOneUnderNoSyncInBetween) {
  on_ranks([](TwoParamsModel& model, double factor, double mean) {
    model.forward(1 * factor).backward();
    {
      const auto guard = model.no_sync();
      model.forward(2 * factor).backward();
    }
    model.forward(4 * factor).backward();
    expect_gradients(model, 7 * mean, 14 * mean);
  });
}

TEST_P(AddingBackwards, AreDroppedByZeroGrad) {
  for (const bool to_none : {true, false}) {
    // With divided gradients zeroing is refused: zeros are like any other
    // values.
    if (!to_none && divides_gradients(GetParam().sharding))
      continue;
    on_ranks([&](TwoParamsModel& model, double factor, double mean) {
      for (const double x : {std::nan(""), 1.0, 2.0}) {
        model->zero_grad(to_none);
        model.forward(x * factor).backward();
      }
      expect_gradients(model, 2 * mean, 4 * mean);
    });
  }
}

// Each part of the graph has a backward of its own, twice.
TEST_P(AddingBackwards, AddUpOverPartsOfTheGraph) {
  on_ranks([](TwoParamsModel& model, double factor, double mean) {
    for (const double x : {1.0, 2.0}) {
      model.forward(x * factor, Uses::kA).backward();
      model.forward(x * factor, Uses::kB).backward();
    }
    expect_gradients(model, 3 * mean, 6 * mean);
    step_with(model, GetParam(), 0.125);
    model.forward(1 * factor, Uses::kB).backward();
    model.forward(1 * factor, Uses::kA).backward();
    expect_gradients(model, mean, 2 * mean);
  });
}

TEST_P(AddingBackwards, AddUpAsSumsToo) {
  run_ranks(3, [&](const CommunicatorPtr& world) {
    GradSyncOptions options = GetParam().options();
    options.reduction = Reduction::kSum;
    TwoParamsModel model(
        std::make_shared<TwoParams>(GetParam().dtype),
        world,
        options,
        {.sync = GetParam().sync});
    model.forward(world->rank() + 1).backward();
    model.forward(2 * (world->rank() + 1)).backward();
    expect_gradients(model, 3 * 6, 6 * 6);
  });
}

// torch::nn::utils writes through data(), which no version shows.
TEST_P(AddingBackwards, AddToWhatWasClippedInBetween) {
  if (GetParam().is_main_grad())
    return;  // a change of .grad is refused
  for (const bool is_reduced : {true, false}) {
    on_ranks([&](TwoParamsModel& model, double factor, double mean) {
      {
        const auto guard = model.accumulate_until_last(is_reduced ? 1 : 0, 2);
        model.forward(1 * factor).backward();
      }
      torch::nn::utils::clip_grad_value_(model->parameters(), 0.5);
      model.forward(4 * factor).backward();
      expect_gradients(model, 0.5 + 4 * mean, 0.5 + 8 * mean);
    });
  }
}

// torch::autograd::grad() between backward and step: norms of each loss
// (GradNorm), inner loops of MAML.
TEST_P(AddingBackwards, AreLeftAloneByGradientsOfOtherLosses) {
  on_ranks([](TwoParamsModel& model, double factor, double mean) {
    for (int step = 0; step < 2; ++step) {
      model.forward(1 * factor).backward();
      const auto loss = model.forward(8 * factor);
      const auto gradients =
          torch::autograd::grad({loss}, {model->a, model->b});
      EXPECT_EQ(gradients[0][0].item<double>(), 8 * factor);
      expect_gradients(model, mean, 2 * mean);
      step_with(model, GetParam(), 0.0);
    }
  });
}

TEST_P(AddingBackwards, StartFromZeroAfterAStepWithExplicitFinish) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    GradSyncOptions options = GetParam().options();
    options.finish = FinishMode::kExplicit;
    TwoParamsModel model(
        std::make_shared<TwoParams>(GetParam().dtype),
        world,
        options,
        {.sync = GetParam().sync});
    for (int step = 0; step < 3; ++step) {
      model.forward(world->rank() + 1).backward();
      model.finish();
      expect_gradients(model, 1.5, 3);
      step_with(model, GetParam(), 0.0);
    }
    for (int part = 0; part < 2; ++part) {
      model.forward(world->rank() + 1).backward();
      model.finish();
    }
    expect_gradients(model, 3, 6);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sync,
    AddingBackwards,
    ::testing::ValuesIn(testing::all_sync_cases()),
    [](const auto& each) { return name_of(each.param); });

TEST(AddingBackwards, CountTheRanksWhoseLossReachesNothing) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params(
        {.handover = GradHandover::kParamDtype,
         .missing = MissingGradient::kZero},
        world);
    model.forward(world->rank() + 1).backward();
    model.finish();
    if (world->rank() == 0)
      model.forward(8, Uses::kA).backward();
    model.finish();
    expect_gradients(model, 1.5 + 4, 3);
  });
}

TEST(AddingBackwards, AddUpOverTheRanksWithData) {
  for (const auto handover :
       {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
    for (const auto divisor :
         {UnevenInputsOptions::Divisor::kRanksWithData,
          UnevenInputsOptions::Divisor::kAllRanks}) {
      run_ranks(3, [&](const CommunicatorPtr& world) {
        TwoParamsModel model = wrap_two_params({.handover = handover}, world);
        model.allow_uneven_inputs({.divisor = divisor});
        const double all =
            divisor == UnevenInputsOptions::Divisor::kAllRanks ? 3 : 2;
        // Ranks that have joined follow the order of their last step.
        model.forward(1).backward();
        model.reset();
        if (world->rank() < 2) {
          model.forward(world->rank() + 1).backward();
          model.forward(2 * (world->rank() + 1)).backward();
          expect_gradients(model, 9 / all, 18 / all);
          model.reset();
        }
        model.join();
      });
    }
  }
}

TEST(AddingBackwards, AddUpSparseGradients) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto reduction : {Reduction::kMean, Reduction::kSum}) {
      DataParallel<torch::nn::Embedding> table(
          torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)),
          world,
          {.reduction = reduction});
      const double divisor = reduction == Reduction::kMean ? 2 : 1;
      const auto backward = [&](int64_t row, double x) {
        (table.forward(torch::tensor({row})) * x).sum().backward();
      };
      backward(world->rank(), 1);
      backward(world->rank() + 1, 4);
      const auto grad = table->weight.grad().to_dense();
      EXPECT_EQ(grad[0][0].item<double>(), 1 / divisor);
      EXPECT_EQ(grad[1][0].item<double>(), 5 / divisor);
      EXPECT_EQ(grad[2][0].item<double>(), 4 / divisor);
    }
  });
}

// The loop of DCGAN: real, fake, step; then a backward of another module's loss
// through this one, which zero_grad() drops.
TEST(AddingBackwards, TrainAsInTheLoopOfAGan) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    TwoParamsModel model =
        wrap_two_params({.handover = GradHandover::kParamDtype}, world);
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    double expected = 1;
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model.forward(world->rank() + 1).backward();
      model.forward(-3 * (world->rank() + 1)).backward();
      optimizer.step();
      expected -= 0.5 * (1.5 - 4.5);
      model.forward(100).backward();
    }
    EXPECT_EQ(model->a[0].item<double>(), expected);
  });
}

// AdamW's kernel, which no observer sees, keeps the gradients.
TEST(AddingBackwards, AreRefusedOnGradientsThatAnOptimizerKept) {
  run_ranks(2, [&](const CommunicatorPtr& world) {
    TwoParamsModel model = wrap_two_params({}, world);
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    model.forward(1).backward();
    optimizer.step(0.1, 1.0, ops::AfterRead::kKeep);
    EXPECT_THAT(
        [&] { model.forward(1).backward(); },
        ::testing::ThrowsMessage<UsageError>(
            ::testing::HasSubstr("call AdamW::step() with AfterRead::kZero")));
  });
}

TEST(NoSync, HoldsForTheLastMicroBatchOfAnInnerGuard) {
  TwoParamsModel model = wrap_two_params({}, testing::make_world_of_one());
  const auto outer = model.no_sync();
  {
    const auto inner = model.accumulate_until_last(1, 2);
    EXPECT_TRUE(model.sync().accumulate_only());
  }
  EXPECT_TRUE(model.sync().accumulate_only());
}

}  // namespace
}  // namespace brigade
