// ZeRO stage 3: no rank holds more weights than two units'. The oracle is the
// same training with whole weights.
#include "brigade/sharding/sharded_weights.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>
#include <stdexcept>

#include "brigade/base/error.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/wrap/data_parallel.h"
#include "brigade/wrap/weight_units.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/whole_units.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::whole_units;

void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& param : module.parameters())
    param.copy_(pseudo_random(param.sizes(), ++seed) * 0.3);
}

// A causal transformer with what is hard to gather: weights before, between
// and after the units, one shared by both ends, and views of weights that
// autograd saves.
struct UnitBlock : torch::nn::Module {
  UnitBlock() {
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({12})));
    attention = register_module(
        "attention",
        torch::nn::MultiheadAttention(
            torch::nn::MultiheadAttentionOptions(12, 3)));
    up = register_module("up", torch::nn::Linear(12, 31));
    down = register_module("down", torch::nn::Linear(31, 12));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto normed = norm(x);
    x = x + std::get<0>(attention(normed, normed, normed));
    return x + down(torch::gelu(up(norm(x))));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};

struct UnitNet : torch::nn::Module {
  UnitNet() {
    embedding = register_module("embedding", torch::nn::Embedding(23, 12));
    position = register_parameter("position", torch::zeros({5, 1, 12}));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i)
      blocks->push_back(std::make_shared<UnitBlock>());
    last = register_module("last", torch::nn::Linear(12, 12));
    fill(*this);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = embedding(ids) + position;
    for (const auto& block : *blocks) {
      x = block->as<UnitBlock>()->forward(x);
      if (on_block)
        on_block();
    }
    return torch::matmul(last(x), embedding->weight.t());
  }
  torch::nn::Embedding embedding{nullptr};
  torch::Tensor position;
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear last{nullptr};
  std::function<void()> on_block;
};

torch::Tensor ids_of(int64_t step, size_t micro_batch, int rank) {
  return pseudo_random(
             {5, 2},
             1000 * step + 10 * static_cast<int64_t>(micro_batch) + rank)
      .mul(1e4)
      .abs()
      .to(torch::kLong)
      .remainder(23);
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& ids) {
  return torch::cross_entropy_loss(
      logits.flatten(0, 1), ids.add(3).remainder(23).flatten());
}

GradSyncOptions unit_options(Sharding sharding) {
  GradSyncOptions options;
  options.bucket_capacity_bytes = 4 * KiB;  // several in a unit
  options.first_bucket_bytes = 1 * KiB;
  options.last_bucket_bytes = 1 * KiB;
  options.handover = GradHandover::kMainGrad;
  options.sharding = sharding;
  return options;
}

using WrappedUnits = DataParallel<std::shared_ptr<UnitNet>>;

struct Trained {
  std::vector<double> losses;
  std::vector<torch::Tensor> weights;
};

constexpr int64_t kUnitSteps = 20;
constexpr size_t kUnitMicroBatches = 2;

Trained train_units(
    const CommunicatorPtr& world,
    Sharding sharding,
    const WrapOptions& wrap = {},
    const std::function<void(WrappedUnits&)>& after_step = {}) {
  const auto net = std::make_shared<UnitNet>();
  WrappedUnits model(net, world, unit_options(sharding), wrap);
  // Attention's key biases have no gradient but rounding: with Adam's own eps
  // they would move by the whole rate all the same.
  AdamW optimizer = make_adamw(model.sync(), 0.01, {.eps = 1e-4});
  Trained trained;
  for (int64_t step = 0; step < kUnitSteps; ++step) {
    for (size_t i = 0; i < kUnitMicroBatches; ++i) {
      const auto guard = model.accumulate_until_last(i, kUnitMicroBatches);
      const auto ids = ids_of(step, i, world->rank());
      const auto loss = loss_of(model.forward(ids), ids);
      trained.losses.push_back(loss.item<double>());
      loss.backward();
    }
    optimizer.step(0.01, model.sync().grad_scale(), ops::AfterRead::kZero);
    model.gather_weights();
    if (after_step)
      after_step(model);
  }
  const FullWeights whole(model.sync());
  for (const auto& param : net->parameters())
    trained.weights.push_back(param.detach().clone());
  return trained;
}

void expect_alike(const Trained& actual, const Trained& expected) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i)
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-6 * expected.losses[i])
        << i;
  for (size_t i = 0; i < actual.weights.size(); ++i)
    EXPECT_LT(
        (actual.weights[i] - expected.weights[i]).abs().max().item<double>(),
        1e-5)
        << i;
}

class ShardedWeightsOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(ShardedWeightsOfRanks, TrainAsWholeOnes) {
  run_ranks(GetParam(), [](const CommunicatorPtr& world) {
    const Trained whole = train_units(world, Sharding::kNone);
    EXPECT_LT(whole.losses.back(), 0.8 * whole.losses.front());
    expect_alike(train_units(world, Sharding::kParameters), whole);
    // One unit; some that are named, one inside another; the rest in one.
    expect_alike(
        train_units(world, Sharding::kParameters, {.units = {"last"}}), whole);
    expect_alike(
        train_units(
            world,
            Sharding::kParameters,
            {.units = {"blocks.0.attention", "blocks.0", "embedding"}}),
        whole);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ShardedWeightsOfRanks,
    ::testing::Values(1, 2, 3));

TEST(ShardedWeights, AreNeverMoreThanTwoUnits) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<UnitNet>();
    WrappedUnits model(net, world, unit_options(Sharding::kParameters));
    ShardedWeights& weights = *model.sync().weights().units();
    EXPECT_EQ(weights.units(), 4);  // three blocks, and the rest
    EXPECT_EQ(whole_units(weights), 0);
    size_t most = 0;
    net->on_block = [&] { most = std::max(most, whole_units(weights)); };
    const auto check_gradients = [&](const torch::Tensor& x) {
      x.register_hook([&](const torch::Tensor&) { net->on_block(); });
    };
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    for (int64_t step = 0; step < 3; ++step) {
      const auto ids = ids_of(step, 0, world->rank());
      const auto logits = model.forward(ids);
      check_gradients(logits);
      loss_of(logits, ids).backward();
      EXPECT_EQ(whole_units(weights), 0) << step;
      optimizer.step(0.01, 1.0, ops::AfterRead::kZero);
      model.gather_weights();
    }
    EXPECT_GT(most, 0);
    EXPECT_LE(most, 2);
    {
      const torch::NoGradGuard no_grad;
      model.forward(ids_of(0, 0, 0));
      EXPECT_EQ(whole_units(weights), 0);
    }
  });
}

// Each layer of a Sequential is a unit. Three are gathered once: the last two,
// and the first, through whose weights no gradient goes. The others are
// gathered twice.
TEST(ShardedWeights, AreSentAtMostTwicePerStepAndOneAhead) {
  run_ranks(2, [](const CommunicatorPtr& given) {
    torch::nn::Sequential net;
    for (int i = 0; i < 6; ++i)
      net->push_back(
          torch::nn::Linear(torch::nn::LinearOptions(16, 16).bias(false)));
    fill(*net);
    DataParallel<torch::nn::Sequential> model(
        net, given, unit_options(Sharding::kParameters));
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    EXPECT_EQ(model.sync().weights().units()->units(), 6);
    constexpr int64_t kUnitBytes = 16 * 16 * sizeof(float);
    for (int step = 0; step < 3; ++step) {
      const int64_t before = given->launches();
      model.forward(torch::ones({2, 16})).sum().backward();
      optimizer.step(0.01, 1.0, ops::AfterRead::kZero);
      model.gather_weights();
      int64_t gathered = 0;
      for (const CollectiveRecord& record : given->records()) {
        if (record.sequence_number >= before &&
            record.op == Collective::kAllGather)
          gathered += record.bytes;
      }
      // The first step knows no order and lacks the first unit's weights.
      if (step > 0) {
        EXPECT_EQ(gathered, (6 + 3) * kUnitBytes) << step;
      }
    }
  });
}

TEST(ShardedWeights, FollowGraphsThatOutliveABackward) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto gradients = [&](Sharding sharding) {
      WrappedUnits model(
          std::make_shared<UnitNet>(), world, unit_options(sharding));
      const auto a = ids_of(1, 0, world->rank());
      const auto b = ids_of(2, 0, world->rank());
      const auto loss_a = loss_of(model.forward(a), a);
      const auto loss_b = loss_of(model.forward(b), b);
      {
        const auto guard = model.no_sync();
        loss_a.backward();
      }
      loss_b.backward();
      std::vector<torch::Tensor> result;
      for (int i = 0; i < static_cast<int>(model.sync().params().size()); ++i)
        result.push_back(model.sync().owned_main_grad(i).clone());
      return result;
    };
    const auto expected = gradients(Sharding::kGradients);
    const auto actual = gradients(Sharding::kParameters);
    // A rank's ranges differ, because buckets end where units do.
    auto sums = torch::zeros({2}, torch::kDouble);
    for (size_t i = 0; i < expected.size(); ++i) {
      sums[0] += expected[i].to(torch::kDouble).square().sum();
      sums[1] += actual[i].to(torch::kDouble).square().sum();
    }
    world->all_reduce(sums)->wait();
    EXPECT_NEAR(sums[1].item<double>() / sums[0].item<double>(), 1, 1e-5);
    EXPECT_GT(sums[0].item<double>(), 0);
  });
}

// The loss reads weights after forward, as weight penalties do.
TEST(ShardedWeights, AreReadBetweenForwardAndBackward) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto loss_with_penalty = [&](Sharding sharding) {
      const auto net = std::make_shared<UnitNet>();
      WrappedUnits model(net, world, unit_options(sharding));
      const auto ids = ids_of(1, 0, world->rank());
      auto loss = loss_of(model.forward(ids), ids);
      for (const auto& param : net->parameters())
        loss = loss + param.square().sum();
      loss.backward();
      return loss.item<double>();
    };
    EXPECT_NEAR(
        loss_with_penalty(Sharding::kParameters),
        loss_with_penalty(Sharding::kNone),
        1e-5);
  });
}

TEST(ShardedWeights, AreNoNumbersWhereNoRankGathersThem) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<UnitNet>();
    WrappedUnits model(net, world, unit_options(Sharding::kParameters));
    if (world->rank() == 0) {  // alone, and waits for nobody
      EXPECT_TRUE(net->last->weight.sum().isnan().item<bool>());
    }
    const auto ids = ids_of(1, 0, world->rank());
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(model.forward(ids).isnan().any().item<bool>());
  });
}

struct ThrowingNet : torch::nn::Module {
  ThrowingNet()
      : layers(register_module(
            "layers",
            torch::nn::Sequential(
                torch::nn::Linear(6, 6),
                torch::nn::Linear(6, 6),
                torch::nn::Linear(6, 6)))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = layers->ptr(0)->as<torch::nn::Linear>()->forward(x);
    if (throws)
      throw std::runtime_error("a batch that cannot be");
    x = layers->ptr(1)->as<torch::nn::Linear>()->forward(x);
    return layers->ptr(2)->as<torch::nn::Linear>()->forward(x);
  }
  torch::nn::Sequential layers;
  bool throws = false;
};

// Then it is over: what one rank reads alone is not gathered, and the next
// forward trains as if there had been none.
TEST(ShardedWeights, AnExceptionInForwardEndsItsPass) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto train = [&](bool throws) {
      const auto net = std::make_shared<ThrowingNet>();
      // Threads share torch's generator.
      for (auto& parameter : net->parameters())
        parameter.set_data(pseudo_random(parameter.sizes(), 7));
      DataParallel model(net, world, unit_options(Sharding::kParameters));
      AdamW optimizer = make_adamw(model.sync(), 0.1);
      for (int step = 0; step < 3; ++step) {
        const auto x = pseudo_random({2, 6}, 10 * step + world->rank());
        if (throws) {
          net->throws = true;
          EXPECT_THROW(model.forward(x), std::runtime_error);
          net->throws = false;
          if (world->rank() == 0) {  // alone, and waits for nobody
            EXPECT_TRUE(net->parameters()[0].sum().isnan().item<bool>());
          }
        }
        model.forward(x).square().mean().backward();
        optimizer.step(0.01, 1.0, ops::AfterRead::kZero);
        model.gather_weights();
      }
      const FullWeights whole(model.sync());
      return torch::nn::utils::parameters_to_vector(net->parameters()).clone();
    };
    EXPECT_TRUE(torch::equal(train(true), train(false)));
  });
}

TEST(ShardedWeights, RefusePassesThatNobodyObserves) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto net = std::make_shared<ThrowingNet>();
    DataParallel model(net, world, unit_options(Sharding::kParameters));
    const auto x = pseudo_random({2, 6}, world->rank());
    const auto error_of = [](const auto& body) {
      const at::DisableRecordFunctionGuard unobserved;
      return message_of<UsageError>(body);
    };
    EXPECT_THAT(
        error_of([&] { model.forward(x); }),
        HasSubstr("a forward with sharding = parameters while"));
    const auto loss = model.forward(x).square().mean();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        HasSubstr("a backward with sharding = parameters while"));
  });
}

TEST(ShardedWeights, AreLoadedAndSavedWhole) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto source = std::make_shared<UnitNet>();
    {
      const torch::NoGradGuard no_grad;
      for (auto& param : source->parameters())
        param.mul_(2);
    }
    std::stringstream file;
    torch::save(source, file);
    const auto net = std::make_shared<UnitNet>();
    WrappedUnits model(net, world, unit_options(Sharding::kParameters));
    AdamW optimizer = make_adamw(model.sync(), 0.0);
    {
      const FullWeights whole(model.sync());
      auto target = net;
      torch::load(target, file);
    }
    const auto ids = ids_of(1, 0, world->rank());
    const auto expected = loss_of(source->forward(ids), ids).item<double>();
    const auto loss = loss_of(model.forward(ids), ids);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-5);
    loss.backward();
    optimizer.step(0.0, 1.0, ops::AfterRead::kZero);
    model.gather_weights();
    const FullWeights whole(model.sync());
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(net->parameters()[i], source->parameters()[i]));
  });
}

TEST(ShardedWeights, TrainAsOneProcessWithATorchOptimizer) {
  for (const int ranks : {2, 3}) {
    UnitNet single;
    torch::optim::Adam oracle(single.parameters(), 0.01);
    std::vector<double> expected;
    for (int64_t step = 0; step < 5; ++step) {
      oracle.zero_grad();
      double sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto ids = ids_of(step, 0, rank);
        const auto loss = loss_of(single.forward(ids), ids);
        sum += loss.item<double>() / ranks;
        (loss / ranks).backward();
      }
      expected.push_back(sum);
      oracle.step();
    }
    run_ranks(ranks, [&](const CommunicatorPtr& world) {
      WrappedUnits model(
          std::make_shared<UnitNet>(),
          world,
          unit_options(Sharding::kParameters));
      torch::optim::Adam optimizer(owned_parameters(model.sync()), 0.01);
      for (int64_t step = 0; step < 5; ++step) {
        const auto ids = ids_of(step, 0, world->rank());
        const auto loss = loss_of(model.forward(ids), ids);
        auto mean = loss.detach().to(torch::kDouble).view({1}) / ranks;
        world->all_reduce(mean)->wait();
        EXPECT_NEAR(
            mean.item<double>(), expected[static_cast<size_t>(step)], 2e-5);
        loss.backward();
        model.step(optimizer);
      }
    });
  }
}

TEST(ShardedWeights, RefuseWhatTheyCannotDo) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    EXPECT_THAT(
        message_of<UsageError>([&] {
          WrappedUnits(
              std::make_shared<UnitNet>(),
              world,
              unit_options(Sharding::kParameters),
              {.units = {"bricks"}});
        }),
        HasSubstr("units names 'bricks', but the module has no submodule"));
    EXPECT_THAT(
        message_of<UsageError>([&] {
          WrappedUnits(
              std::make_shared<UnitNet>(),
              world,
              unit_options(Sharding::kOptimizer),
              {.units = {"last"}});
        }),
        HasSubstr("sharding is optimizer, which leaves weights whole"));
    EXPECT_THAT(
        message_of<UsageError>([&] {
          const auto net = std::make_shared<UnitNet>();
          WrappedUnits model(net, world, unit_options(Sharding::kParameters));
          net->last->weight.set_data(torch::zeros({12, 12}));
          const auto ids = ids_of(1, 0, world->rank());
          loss_of(model.forward(ids), ids).backward();
        }),
        HasSubstr("load weights while a brigade::FullWeights lives"));
  });
}

// A unit that nothing but ops of Brigade reads, in forward and in backward.
struct OpsBlock : torch::nn::Module {
  OpsBlock() {
    scale = register_parameter("scale", torch::zeros({12}));
    weight = register_parameter("weight", torch::zeros({12, 12}));
    fill(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {  // not const: Sequential
    return ops::rms_norm(ops::linear(x, weight), scale, 1e-5);
  }
  torch::Tensor scale, weight;
};

std::vector<torch::Tensor> train_ops(
    const CommunicatorPtr& world,
    Sharding sharding) {
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i)
    net->push_back(OpsBlock());
  DataParallel<torch::nn::Sequential> model(net, world, unit_options(sharding));
  AdamW optimizer = make_adamw(model.sync(), 0.01);
  for (int64_t step = 0; step < 4; ++step) {
    model.forward(pseudo_random({5, 12}, 10 * step + world->rank()))
        .pow(3)
        .mean()
        .backward();
    optimizer.step(0.01, model.sync().grad_scale(), ops::AfterRead::kZero);
    model.gather_weights();
  }
  std::vector<torch::Tensor> weights;
  const FullWeights whole(model.sync());
  for (const auto& param : net->parameters())
    weights.push_back(param.detach().clone());
  return weights;
}

TEST(ShardedWeights, AreReadByOpsOfBrigade) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto whole = train_ops(world, Sharding::kNone);
    const auto divided = train_ops(world, Sharding::kParameters);
    for (size_t i = 0; i < whole.size(); ++i)
      EXPECT_LT((whole[i] - divided[i]).abs().max().item<double>(), 1e-6) << i;
  });
}

TEST(ShardedWeights, DefaultUnitsAreTheChildrenOfLists) {
  const UnitNet net;
  EXPECT_THAT(
      default_units(net), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  const torch::nn::Sequential sequential(
      torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  EXPECT_THAT(default_units(*sequential), ElementsAre("0", "1"));
  EXPECT_THAT(default_units(*torch::nn::Linear(2, 2)), ElementsAre());
}

}  // namespace
}  // namespace brigade
