// What users do to gradients with sharding: clearing, clipping, optimizers of
// torch::optim. Oracles: one process, and the same without sharding.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

// Sizes that no number of ranks divides.
torch::nn::Sequential make_clipped_net() {
  torch::nn::Sequential net(
      torch::nn::Linear(7, 13), torch::nn::Tanh(), torch::nn::Linear(13, 3));
  fill_params(*net);
  return net;
}

torch::Tensor clipped_data(int rank, int batch) {
  return pseudo_random({4, 7}, 10 * batch + rank);
}

torch::Tensor clipped_loss(const torch::Tensor& y) {
  return y.pow(2).mean();
}

GradSyncOptions clipped_options(
    Sharding sharding,
    GradHandover handover = GradHandover::kMainGrad) {
  GradSyncOptions options;
  options.bucket_capacity_bytes = 128;  // several buckets
  options.first_bucket_bytes = 64;
  options.handover = handover;
  options.sharding = sharding;
  return options;
}

using ClippedModel = DataParallel<torch::nn::Sequential>;

std::vector<torch::Tensor> owned_gradients(GradSync& sync) {
  std::vector<torch::Tensor> result;
  for (int i = 0; i < static_cast<int>(sync.params().size()); ++i)
    result.push_back(sync.owned_main_grad(i).clone());
  return result;
}

// Expects the same gradients after two micro-batches, the first of which `drop`
// drops, and after the second alone.
void expect_first_is_dropped(
    const CommunicatorPtr& world,
    Sharding sharding,
    const std::function<void(ClippedModel&)>& drop) {
  const auto second_of = [&](const std::function<void(ClippedModel&)>& first) {
    ClippedModel model(make_clipped_net(), world, clipped_options(sharding));
    first(model);
    clipped_loss(model.forward(clipped_data(world->rank(), 1))).backward();
    return owned_gradients(model.sync());
  };
  const auto dropped = second_of([&](ClippedModel& model) {
    const auto guard = model.no_sync();
    clipped_loss(model.forward(clipped_data(world->rank(), 0))).backward();
    drop(model);
  });
  const auto alone = second_of([](ClippedModel&) {});
  for (size_t i = 0; i < alone.size(); ++i)
    EXPECT_TRUE(torch::equal(dropped[i], alone[i]))
        << to_string(sharding) << " " << i;
}

TEST(ShardedZeroGrad, DropsWhatWasAccumulatedBetweenMicroBatches) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
      expect_first_is_dropped(world, sharding, [](ClippedModel& model) {
        model->zero_grad(/*set_to_none=*/true);
      });
      expect_first_is_dropped(
          world, sharding, [](ClippedModel& model) { model.reset(); });
    }
    expect_first_is_dropped(
        world, Sharding::kOptimizer, [](ClippedModel& model) {
          model->zero_grad(/*set_to_none=*/false);
        });
  });
}

// .grad does not hold the sum of divided gradients, so writing it could mean
// anything.
TEST(ShardedZeroGrad, IsRefusedWhereItWritesDividedGradients) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding : {Sharding::kGradients, Sharding::kParameters}) {
      EXPECT_THAT(
          [&] {
            expect_first_is_dropped(world, sharding, [](ClippedModel& model) {
              model->zero_grad(/*set_to_none=*/false);
            });
          },
          ThrowsMessage<UsageError>(AllOf(
              HasSubstr(".grad was written between micro-batches"),
              HasSubstr("call reset(), or zero_grad("))));
    }
  });
}

// An optimizer that keeps gradients, and zero_grad() as in every loop.
TEST(ShardedZeroGrad, ClearsAfterAStepOrIsAnError) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
      for (const bool to_none : {false, true}) {
        ClippedModel model(
            make_clipped_net(), world, clipped_options(sharding));
        AdamW optimizer = make_adamw(model.sync(), 0.0);
        const auto backward = [&] {
          clipped_loss(model.forward(clipped_data(world->rank(), 1)))
              .backward();
          return owned_gradients(model.sync());
        };
        const auto first = backward();
        optimizer.step(0.0, 1.0, ops::AfterRead::kKeep);
        model.gather_weights();
        model->zero_grad(to_none);
        if (sharding == Sharding::kOptimizer || to_none) {
          const auto second = backward();
          for (size_t i = 0; i < first.size(); ++i)
            EXPECT_TRUE(torch::equal(first[i], second[i])) << i;
        } else {
          EXPECT_THROW(backward(), UsageError) << to_string(sharding);
        }
      }
    }
  });
}

// The loop that everybody writes, with zero_grad() of the optimizer.
TEST(OwnedParameters, TrainWithZeroGradOfTheirOptimizer) {
  auto single = make_clipped_net();
  torch::optim::Adam oracle(single->parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    oracle.zero_grad();
    for (int rank = 0; rank < 2; ++rank)
      (clipped_loss(single->forward(clipped_data(rank, step))) / 2).backward();
    oracle.step();
  }
  run_ranks(2, [&](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kNone,
          Sharding::kOptimizer,
          Sharding::kGradients,
          Sharding::kParameters}) {
      for (const bool to_none : {false, true}) {
        ClippedModel model(
            make_clipped_net(), world, clipped_options(sharding));
        torch::optim::Adam optimizer(owned_parameters(model.sync()), 0.05);
        for (int step = 0; step < 3; ++step) {
          if (to_none) {  // what zero_grad() of libtorch 2 does
            for (auto& param : optimizer.param_groups().front().params())
              param.mutable_grad().reset();
          } else {
            optimizer.zero_grad();
          }
          clipped_loss(model.forward(clipped_data(world->rank(), step)))
              .backward();
          model.step(optimizer);
        }
        const FullWeights whole(model.sync());
        for (size_t i = 0; i < model->parameters().size(); ++i)
          EXPECT_LT(
              (model->parameters()[i] - single->parameters()[i])
                  .abs()
                  .max()
                  .item<double>(),
              1e-5)
              << to_string(sharding) << " " << to_none << " " << i;
      }
    }
  });
}

// Before the reduction a rank's own range is not all that it has accumulated.
TEST(OwnedParameters, ClearedBetweenMicroBatchesDropAllOrAreAnError) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kNone,
          Sharding::kOptimizer,
          Sharding::kGradients,
          Sharding::kParameters}) {
      for (const bool to_none : {false, true}) {
        const auto backward = [&](ClippedModel& model, int64_t step) {
          clipped_loss(model.forward(clipped_data(world->rank(), step)))
              .backward();
        };
        ClippedModel alone(
            make_clipped_net(), world, clipped_options(sharding));
        backward(alone, 1);
        const auto expected = owned_gradients(alone.sync());

        ClippedModel model(
            make_clipped_net(), world, clipped_options(sharding));
        auto owned = owned_parameters(model.sync());
        {
          const auto guard = model.no_sync();
          backward(model, 0);
        }
        for (torch::Tensor& param : owned) {
          if (to_none)
            param.mutable_grad().reset();
          else
            param.mutable_grad().zero_();
        }
        if (to_none || sharding == Sharding::kOptimizer) {
          EXPECT_THROW(backward(model, 1), UsageError)
              << to_string(sharding) << " " << to_none;
          model.reset();
        }
        backward(model, 1);
        const auto actual = owned_gradients(model.sync());
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(torch::equal(actual[i], expected[i]))
              << to_string(sharding) << " " << to_none << " " << i;
      }
    }
  });
}

// Without model.step() no rank would have what the others stepped.
TEST(OwnedParameters, SteppedByTheirOptimizerAloneAreAnError) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kOptimizer, Sharding::kGradients, Sharding::kParameters}) {
      ClippedModel model(make_clipped_net(), world, clipped_options(sharding));
      torch::optim::SGD optimizer(owned_parameters(model.sync()), 0.1);
      const auto step = [&] {
        optimizer.zero_grad();
        clipped_loss(model.forward(clipped_data(world->rank(), 0))).backward();
        optimizer.step();
      };
      step();
      EXPECT_THROW(step(), UsageError) << to_string(sharding);
    }
  });
}

TEST(ClipGradNorm, IsThatOfOneProcessWhateverIsSharded) {
  constexpr double kMaxNorm = 0.3;
  for (const int ranks : {1, 2, 3}) {
    auto single = make_clipped_net();
    torch::optim::SGD oracle(single->parameters(), 0.1);
    std::vector<double> norms;
    for (int step = 0; step < 3; ++step) {
      oracle.zero_grad();
      for (int rank = 0; rank < ranks; ++rank)
        (clipped_loss(single->forward(clipped_data(rank, step))) / ranks)
            .backward();
      norms.push_back(
          torch::nn::utils::clip_grad_norm_(single->parameters(), kMaxNorm));
      oracle.step();
    }
    EXPECT_GT(norms.front(), kMaxNorm);
    const auto expect_same = [&](ClippedModel& model) {
      const FullWeights whole(model.sync());
      for (size_t i = 0; i < model->parameters().size(); ++i)
        EXPECT_LT(
            (model->parameters()[i] - single->parameters()[i])
                .abs()
                .max()
                .item<double>(),
            1e-5)
            << to_string(model.sync().options().sharding) << " " << i;
    };
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      for (const auto sharding :
           {Sharding::kNone,
            Sharding::kOptimizer,
            Sharding::kGradients,
            Sharding::kParameters}) {
        ClippedModel model(
            make_clipped_net(), world, clipped_options(sharding));
        torch::optim::SGD optimizer(owned_parameters(model.sync()), 0.1);
        for (int step = 0; step < 3; ++step) {
          clipped_loss(model.forward(clipped_data(world->rank(), step)))
              .backward();
          EXPECT_NEAR(
              model.clip_grad_norm(kMaxNorm),
              norms[static_cast<size_t>(step)],
              1e-5);
          model.step(optimizer);
        }
        expect_same(model);
      }
      for (const auto sync :
           {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
        ClippedModel model(
            make_clipped_net(),
            world,
            clipped_options(Sharding::kNone, GradHandover::kParamDtype),
            {.sync = sync});
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        EXPECT_THROW(model.clip_grad_norm(kMaxNorm), UsageError);
        for (int step = 0; step < 3; ++step) {
          clipped_loss(model.forward(clipped_data(world->rank(), step)))
              .backward();
          EXPECT_NEAR(
              model.clip_grad_norm(kMaxNorm),
              norms[static_cast<size_t>(step)],
              1e-5);
          optimizer.step();
        }
        expect_same(model);
      }
    });
  }
}

// Clipped gradients are not cleared ones.
TEST(ClipGradNorm, DoesNotCountAsClearingKeptGradients) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    for (const auto sharding :
         {Sharding::kNone,
          Sharding::kOptimizer,
          Sharding::kGradients,
          Sharding::kParameters}) {
      ClippedModel model(make_clipped_net(), world, clipped_options(sharding));
      AdamW optimizer = make_adamw(model.sync(), 0.0);
      const auto backward = [&] {
        clipped_loss(model.forward(clipped_data(world->rank(), 1))).backward();
      };
      backward();
      EXPECT_GT(model.clip_grad_norm(1e-3), 1e-3);
      model.clip_grad_value(1e-4);
      optimizer.step(0.0, model.sync().grad_scale(), ops::AfterRead::kKeep);
      model.gather_weights();
      EXPECT_THROW(backward(), UsageError) << to_string(sharding);
    }
  });
}

TEST(ClipGradNorm, SeesSparseGradientsAndCopiesInFloat32) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    DataParallel<torch::nn::Embedding> tables(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)),
        world);
    tables.forward(torch::tensor({1, 3, 1})).sum().backward();
    // Row 1 twice, row 3 once, two columns each.
    EXPECT_NEAR(tables.clip_grad_norm(1.0), std::sqrt(10.0), 1e-6);
    EXPECT_NEAR(
        tables->weight.grad().to_dense().norm().item<double>(), 1.0, 1e-5);

    ClippedModel mixed(
        make_clipped_net(), world, {}, {.mixed_precision = MixedPrecision{}});
    clipped_loss(
        mixed.forward(clipped_data(world->rank(), 0)).to(torch::kFloat))
        .backward();
    mixed.clip_grad_norm(0.1);
    double sum = 0;
    for (const auto& param : mixed->parameters()) {
      EXPECT_EQ(param.grad().scalar_type(), torch::kFloat);
      sum += param.grad().square().sum().item<double>();
    }
    EXPECT_NEAR(std::sqrt(sum), 0.1, 1e-5);
  });
}

// With memory that takes a while to gather.
TEST(ShardedWeightsOnTheirWay, AreWaitedForByTheModuleAndTheWrappersEnd) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<torch::nn::LinearImpl>(1500, 1500);
    for (const bool reads_through_wrapper : {true, false}) {
      {
        DataParallel model(
            net,
            world,
            {.handover = GradHandover::kMainGrad,
             .sharding = Sharding::kOptimizer,
             .gather = GatherMode::kOverlapForward});
        AdamW optimizer = make_adamw(model.sync(), 0.0);
        model.forward(torch::ones({1, 1500})).sum().backward();
        optimizer.step(0.1 * (world->rank() + 1), 0.5, ops::AfterRead::kZero);
        world->barrier();
        // Rank 0 reads while rank 1 has not yet launched.
        if (world->rank() == 1)
          pseudo_random({3000, 3000}, 1).sin().sum().item<double>();
        model.gather_weights();
        if (reads_through_wrapper) {
          const double last = model->weight[1499][1499].item<double>();
          const double first = model->weight[0][0].item<double>();
          model.sync().weights().need_all();
          EXPECT_EQ(last, net->weight[1499][1499].item<double>());
          EXPECT_EQ(first, net->weight[0][0].item<double>());
        }
      }
      auto others = net->weight.detach().clone();
      world->broadcast(others, 0)->wait();
      EXPECT_TRUE(torch::equal(others, net->weight));
    }
  });
}

}  // namespace
}  // namespace brigade
