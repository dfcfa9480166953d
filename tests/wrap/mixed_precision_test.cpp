// 16-bit copies that compute and float32 parameters that are stepped, against a
// loop that keeps both by hand, as a user of PyTorch would write it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <stdexcept>

#include "brigade/base/error.h"
#include "brigade/model/recompute.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::make_world_of_one;
using testing::run_ranks;

constexpr int kPrecisionSteps = 4;
constexpr int kPrecisionMicroBatches = 2;

struct PrecisionNetImpl : torch::nn::Module {
  PrecisionNetImpl() {
    first = register_module("first", torch::nn::Linear(5, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
    fill_params(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    seen = first->weight.scalar_type();
    if (fails)
      throw std::runtime_error("forward failed");
    return second(torch::tanh(first(x)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::ScalarType seen = torch::kFloat;
  bool fails = false;
};
TORCH_MODULE(PrecisionNet);

torch::Tensor precision_data(int rank, int step, int micro_batch) {
  return pseudo_random({6, 5}, 100 * rank + 10 * step + micro_batch);
}

torch::Tensor precision_loss(const torch::Tensor& y) {
  return y.to(torch::kFloat).pow(2).mean();
}

// All ranks in one loop: copies of float32 weights compute, their gradients are
// added in float32, and the mean steps the weights.
std::vector<torch::Tensor> train_with_copies_by_hand(
    int ranks,
    torch::optim::Optimizer& optimizer,
    const std::vector<torch::Tensor>& weights) {
  for (int step = 0; step < kPrecisionSteps; ++step) {
    std::vector<torch::Tensor> sums;
    for (const auto& weight : weights)
      sums.push_back(torch::zeros_like(weight));
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<torch::Tensor> of_rank;
      for (const auto& weight : weights)
        of_rank.push_back(torch::zeros_like(weight));
      for (int m = 0; m < kPrecisionMicroBatches; ++m) {
        std::vector<torch::Tensor> low;
        for (const auto& weight : weights)
          low.push_back(weight.detach().to(torch::kBFloat16).requires_grad_());
        const auto x = precision_data(rank, step, m).to(torch::kBFloat16);
        const auto y = torch::linear(
            torch::tanh(torch::linear(x, low[0], low[1])), low[2], low[3]);
        precision_loss(y).backward();
        for (size_t i = 0; i < low.size(); ++i)
          of_rank[i] += low[i].grad().to(torch::kFloat);
      }
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] += of_rank[i] / ranks;
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      auto weight = weights[i];
      weight.mutable_grad() = sums[i];
    }
    optimizer.step();
  }
  return weights;
}

std::vector<torch::Tensor> leaves_of(const PrecisionNet& net) {
  std::vector<torch::Tensor> leaves;
  for (const auto& param : net->parameters())
    leaves.push_back(param.detach().clone().requires_grad_());
  return leaves;
}

WrapOptions with_precision(
    const MixedPrecision& precision = {},
    GradSyncAlgorithm sync = GradSyncAlgorithm::kBucketed) {
  WrapOptions wrap;
  wrap.sync = sync;
  wrap.mixed_precision = precision;
  return wrap;
}

template <typename Model>
void run_precision_step(Model& model, int rank, int step) {
  for (int m = 0; m < kPrecisionMicroBatches; ++m) {
    const auto guard = model.accumulate_until_last(
        static_cast<size_t>(m), kPrecisionMicroBatches);
    precision_loss(model.forward(precision_data(rank, step, m))).backward();
  }
}

TEST(MixedPrecision, GivesTheWeightsOfALoopWithCopies) {
  auto expected = leaves_of(PrecisionNet());
  torch::optim::SGD by_hand(
      expected, torch::optim::SGDOptions(0.1).momentum(0.9));
  train_with_copies_by_hand(2, by_hand, expected);
  for (const auto sync :
       {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
    for (const auto order : {BucketOrder::kReverse, BucketOrder::kObserved}) {
      run_ranks(2, [&](CommunicatorPtr world) {
        GradSyncOptions options;
        options.order = order;
        options.bucket_capacity_bytes = 64;
        DataParallel model(
            PrecisionNet(), world, options, with_precision({}, sync));
        torch::optim::SGD optimizer(
            model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        for (int step = 0; step < kPrecisionSteps; ++step) {
          run_precision_step(model, world->rank(), step);
          optimizer.step();
        }
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(torch::equal(model->parameters()[i], expected[i])) << i;
      });
    }
  }
}

TEST(MixedPrecision, BrigadesAdamWStepsFloat32ParametersInTheFlatMemory) {
  auto expected = leaves_of(PrecisionNet());
  torch::optim::AdamW by_hand(
      expected, torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  train_with_copies_by_hand(2, by_hand, expected);
  for (const auto sharding : {Sharding::kNone, Sharding::kOptimizer}) {
    run_ranks(2, [&](CommunicatorPtr world) {
      GradSyncOptions options;
      options.handover = GradHandover::kMainGrad;
      options.sharding = sharding;
      DataParallel model(PrecisionNet(), world, options, with_precision());
      AdamW optimizer = make_adamw(model.sync(), 0.1);
      for (int step = 0; step < kPrecisionSteps; ++step) {
        run_precision_step(model, world->rank(), step);
        optimizer.step(0.05, model.sync().grad_scale(), ops::AfterRead::kZero);
        model.gather_weights();
      }
      model.sync().weights().need_all();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(
            torch::allclose(model->parameters()[i], expected[i], 1e-4, 1e-5))
            << i;
      }
    });
  }
}

TEST(MixedPrecision, ParametersAreFloat32OutsideOfForwardAndBackward) {
  DataParallel model(PrecisionNet(), make_world_of_one(), {}, with_precision());
  const auto are_float = [&] {
    bool result = true;
    for (const auto& param : model->parameters())
      result = result && param.scalar_type() == torch::kFloat;
    return result;
  };
  const auto x = precision_data(0, 0, 0);
  EXPECT_TRUE(are_float());
  const auto y = model.forward(x);
  EXPECT_EQ(model->seen, torch::kBFloat16);
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(are_float());
  {
    const torch::NoGradGuard evaluates;
    EXPECT_TRUE(torch::equal(model.forward(x), y));
  }
  EXPECT_TRUE(are_float());
  // Two forwards before one backward.
  (precision_loss(y) + precision_loss(model.forward(x))).backward();
  EXPECT_TRUE(are_float());
  EXPECT_EQ(model->first->weight.grad().scalar_type(), torch::kFloat);
  // A forward whose result is dropped, then a step.
  model.forward(x);
  torch::optim::SGD(model->parameters(), 0.1).step();
  EXPECT_TRUE(are_float());
}

TEST(MixedPrecision, TheModuleAloneComputesInFloat32BackwardToo) {
  PrecisionNet reference;
  DataParallel model(PrecisionNet(), make_world_of_one(), {}, with_precision());
  const auto x = precision_data(0, 0, 0);
  precision_loss(reference->forward(x)).backward();
  precision_loss(model->forward(x)).backward();
  EXPECT_EQ(model->seen, torch::kFloat);
  for (size_t i = 0; i < reference->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(
        model->parameters()[i].grad(), reference->parameters()[i].grad()));
  }
}

TEST(MixedPrecision, AnExceptionLeavesFloat32Parameters) {
  DataParallel model(PrecisionNet(), make_world_of_one(), {}, with_precision());
  model->fails = true;
  EXPECT_THROW(model.forward(precision_data(0, 0, 0)), std::runtime_error);
  EXPECT_EQ(model->first->weight.scalar_type(), torch::kFloat);
  model->fails = false;
  auto y = model.forward(precision_data(0, 0, 0));
  auto hidden = y * 1;
  y.register_hook([](const torch::Tensor&) {
    throw std::runtime_error("backward failed");
  });
  EXPECT_THROW(hidden.sum().backward(), std::runtime_error);
  model.reset();
  EXPECT_EQ(model->first->weight.scalar_type(), torch::kFloat);
  precision_loss(model.forward(precision_data(0, 0, 0))).backward();
  EXPECT_EQ(model->first->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(model->first->weight.grad().defined());
}

TEST(MixedPrecision, GradientsAreSentInTheDtypeOfTheOption) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    run_ranks(2, [&](CommunicatorPtr world) {
      PrecisionNet reference;
      DataParallel model(
          PrecisionNet(), world, {}, with_precision({.reduce_dtype = dtype}));
      world->clear_records();
      precision_loss(model.forward(precision_data(world->rank(), 0, 0)))
          .backward();
      int64_t largest = 0;
      for (const auto& record : world->records())
        largest = std::max(largest, record.bytes);
      const int64_t numel = model.sync().segments()[0].main_grad.numel();
      if (dtype == torch::kFloat) {
        EXPECT_EQ(largest, numel * 4);
      } else {
        EXPECT_LE(largest, numel * 2);
      }
      auto expected = torch::zeros_like(reference->second->weight);
      for (int rank = 0; rank < 2; ++rank) {
        reference->zero_grad();
        precision_loss(reference->forward(precision_data(rank, 0, 0)))
            .backward();
        expected += reference->second->weight.grad() / 2;
      }
      EXPECT_TRUE(
          torch::allclose(model->second->weight.grad(), expected, 0.05, 0.01));
    });
  }
}

TEST(MixedPrecision, KeptParametersAndBatchNormsComputeInFloat32) {
  torch::nn::Sequential net(
      torch::nn::Linear(4, 6),
      torch::nn::BatchNorm1d(6),
      torch::nn::Linear(6, 2));
  DataParallel model(
      net,
      make_world_of_one(),
      {},
      with_precision(
          {.buffer_dtype = torch::kBFloat16,
           .output_dtype = torch::kFloat,
           .keep = {"0.bias"}}));
  const auto copy_of = [&](const std::string& name) {
    return model.sync()
        .params()[static_cast<size_t>(model.sync().param_set().index_of(name))]
        .compute_copy;
  };
  EXPECT_EQ(copy_of("0.weight").scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(copy_of("0.bias").defined());
  EXPECT_FALSE(copy_of("1.weight").defined());
  EXPECT_FALSE(copy_of("1.bias").defined());
  EXPECT_TRUE(copy_of("2.bias").defined());
  EXPECT_EQ(
      net->named_buffers()["1.running_mean"].scalar_type(), torch::kFloat);
  EXPECT_THAT(
      message_of<Error>([&] {
        DataParallel other(
            PrecisionNet(),
            make_world_of_one(),
            {},
            with_precision({.keep = {"third"}}));
      }),
      HasSubstr("keep 'third'"));
}

TEST(MixedPrecision, ConvertsBuffersAndOutputsByOption) {
  struct Shift : torch::nn::Module {
    Shift() {
      scale = register_parameter("scale", torch::ones({2}));
      shift = register_buffer("shift", torch::full({2}, 0.5));
      calls = register_buffer("calls", torch::zeros({1}, torch::kLong));
    }
    std::tuple<torch::Tensor, std::vector<torch::Tensor>> forward(
        const torch::Tensor& x) {
      const auto y = scale * x + shift;
      return {y, {y * 2}};
    }
    torch::Tensor scale, shift, calls;
  };
  DataParallel model(
      std::make_shared<Shift>(),
      make_world_of_one(),
      {},
      with_precision(
          {.buffer_dtype = torch::kBFloat16, .output_dtype = torch::kFloat}));
  EXPECT_EQ(model->shift.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(model->calls.scalar_type(), torch::kLong);
  const auto [y, more] = model.forward(torch::ones({2}) * 1.001);
  EXPECT_EQ(y.scalar_type(), torch::kFloat);
  EXPECT_EQ(y[0].item<double>(), 1.5);  // 1.001 is 1 in bf16
  more[0].sum().backward();
  EXPECT_EQ(model->scale.scalar_type(), torch::kFloat);
  EXPECT_EQ(model->scale.grad()[0].item<double>(), 2.0);
}

TEST(MixedPrecision, RecomputationsAndGradientPenaltiesWork) {
  struct Net : torch::nn::Module {
    Net() { w = register_parameter("w", torch::full({2}, 3.0)); }
    torch::Tensor forward(const torch::Tensor& x) {
      return recompute(
          [this](const std::vector<torch::Tensor>& inputs) {
            EXPECT_EQ(w.scalar_type(), torch::kBFloat16);
            return w * inputs[0] * w;
          },
          {x});
    }
    torch::Tensor w;
  };
  {
    DataParallel model(
        std::make_shared<Net>(), make_world_of_one(), {}, with_precision());
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model.forward(torch::ones({2})).sum().backward();
      EXPECT_EQ(model->w.grad()[0].item<double>(), 6.0);
      EXPECT_EQ(model->w.scalar_type(), torch::kFloat);
    }
  }
  struct Square : torch::nn::Module {
    Square() { w = register_parameter("w", torch::full({2}, 2.0)); }
    torch::Tensor forward(const torch::Tensor& x) { return w * w * x; }
    torch::Tensor w;
  };
  DataParallel model(
      std::make_shared<Square>(), make_world_of_one(), {}, with_precision());
  for (const bool is_penalty_alone : {false, true}) {
    auto x = torch::ones({2}).requires_grad_();
    const auto y = model.forward(x).sum();
    const auto penalty = torch::autograd::grad(
        {y}, {x}, {}, c10::nullopt, /*create_graph=*/true)[0];
    model->zero_grad();
    (is_penalty_alone ? penalty.sum() : y + penalty.sum()).backward();
    // d/dw (w^2 x + w^2) = 2 w x + 2 w
    EXPECT_EQ(model->w.grad()[0].item<double>(), is_penalty_alone ? 4.0 : 8.0);
    EXPECT_EQ(model->w.scalar_type(), torch::kFloat);
  }
}

// The graph that stays must not leave an optimizer with the copies.
TEST(MixedPrecision, AStepAfterABackwardThatKeepsItsGraphIsNotLost) {
  struct Square : torch::nn::Module {
    Square() { w = register_parameter("w", torch::full({2}, 2.0)); }
    torch::Tensor forward(const torch::Tensor& x) { return w * w * x; }
    torch::Tensor w;
  };
  for (const auto sync :
       {GradSyncAlgorithm::kBucketed, GradSyncAlgorithm::kPerParam}) {
    for (const auto order : {BucketOrder::kReverse, BucketOrder::kObserved}) {
      GradSyncOptions options;
      options.order = order;
      DataParallel model(
          std::make_shared<Square>(),
          make_world_of_one(),
          options,
          with_precision({}, sync));
      torch::optim::SGD optimizer({model->w}, 0.001);
      model.forward(torch::ones({2}))
          .sum()
          .backward({}, c10::nullopt, /*create_graph=*/true);
      EXPECT_EQ(model->w.scalar_type(), torch::kFloat);
      optimizer.step();
      model->w.mutable_grad().reset();  // breaks the cycle of create_graph
      EXPECT_EQ(model->w[0].item<float>(), 2.0F - 0.001F * 4.0F);
      // The next step keeps it too.
      model.forward(torch::ones({2})).sum().backward();
      EXPECT_EQ(model->w[0].item<float>(), 2.0F - 0.001F * 4.0F);
    }
  }
}

// torch::autograd::grad() with create_graph between backward and step, and a
// product of it with a vector, or not.
TEST(MixedPrecision, GradientsThatCanBeDifferentiatedLeaveFloat32Parameters) {
  struct Square : torch::nn::Module {
    Square() { w = register_parameter("w", torch::full({4}, 2.0)); }
    torch::Tensor forward(const torch::Tensor& x) { return (w * w * x).sum(); }
    torch::Tensor w;
  };
  for (const auto sharding :
       {Sharding::kNone, Sharding::kOptimizer, Sharding::kGradients}) {
    for (const auto handover :
         {GradHandover::kParamDtype, GradHandover::kMainGrad}) {
      const bool is_flat = handover == GradHandover::kMainGrad;
      if (!is_flat && sharding != Sharding::kNone)
        continue;
      testing::run_ranks(2, [&](const CommunicatorPtr& world) {
        DataParallel model(
            std::make_shared<Square>(),
            world,
            {.handover = handover, .sharding = sharding},
            with_precision());
        torch::optim::SGD optimizer(
            is_flat ? owned_parameters(model.sync()) : model->parameters(),
            0.125);
        const torch::Tensor x = torch::ones({4});
        for (const float weight : {2.0F, 1.5F}) {
          model.forward(x).backward();
          const auto loss = model.forward(x);
          const auto gradient = torch::autograd::grad(
              {loss}, {model->w}, {}, c10::nullopt, /*create_graph=*/true)[0];
          EXPECT_EQ(model->w.scalar_type(), torch::kFloat);
          EXPECT_EQ(model->w[0].item<float>(), weight);
          EXPECT_EQ(gradient[0].item<float>(), 2 * weight);
          if (weight == 2.0F) {
            const auto second =
                torch::autograd::grad({gradient.sum()}, {model->w})[0];
            EXPECT_EQ(second[0].item<float>(), 2.0F);
            EXPECT_EQ(model->w.scalar_type(), torch::kFloat);
          }
          if (is_flat)
            model.step(optimizer);
          else
            optimizer.step();
          EXPECT_EQ(model->w[0].item<float>(), weight * 0.75F);
        }
      });
    }
  }
}

TEST(MixedPrecision, HalfCopiesAndFrozenParametersToo) {
  struct Net : torch::nn::Module {
    Net() {
      w = register_parameter("w", torch::full({2}, 0.1));
      frozen = register_parameter("frozen", torch::full({2}, 0.1), false);
      wide = register_parameter("wide", torch::ones({2}, torch::kDouble));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      seen = {w.scalar_type(), frozen.scalar_type(), wide.scalar_type()};
      return w * x + frozen + wide;
    }
    torch::Tensor w, frozen, wide;
    std::vector<torch::ScalarType> seen;
  };
  DataParallel model(
      std::make_shared<Net>(),
      make_world_of_one(),
      {},
      with_precision({.param_dtype = torch::kHalf}));
  model.forward(torch::ones({2})).sum().backward();
  EXPECT_EQ(
      model->seen,
      (std::vector<torch::ScalarType>{
          torch::kHalf, torch::kHalf, torch::kDouble}));
  EXPECT_EQ(model->w.grad()[0].item<double>(), 1.0);
  EXPECT_EQ(model->wide.grad().scalar_type(), torch::kDouble);
}

TEST(MixedPrecision, RefusesOptionsThatCannotBeHonoured) {
  const auto error_of = [](const MixedPrecision& precision, BucketHook hook) {
    return message_of<Error>([&] {
      GradSyncOptions options;
      options.hook = std::move(hook);
      DataParallel model(
          PrecisionNet(),
          make_world_of_one(),
          options,
          with_precision(precision));
    });
  };
  EXPECT_THAT(
      error_of({.param_dtype = torch::kDouble}, {}),
      HasSubstr("param_dtype = Double"));
  EXPECT_THAT(
      error_of({.reduce_dtype = torch::kDouble}, {}),
      HasSubstr("reduce_dtype = Double"));
  EXPECT_THAT(
      error_of({.buffer_dtype = torch::kLong}, {}), HasSubstr("= Long"));
  EXPECT_THAT(
      error_of({.reduce_dtype = torch::kBFloat16}, all_reduce_hook()),
      HasSubstr("the hook decides what is sent"));
  struct Opaque {
    torch::Tensor hidden;
  };
  struct Net : torch::nn::Module {
    Net() { w = register_parameter("w", torch::ones({1})); }
    Opaque forward(const torch::Tensor& x) { return {w * x}; }
    torch::Tensor w;
  };
  EXPECT_THAT(
      message_of<Error>([] {
        DataParallel model(
            std::make_shared<Net>(), make_world_of_one(), {}, with_precision());
        model.forward(torch::ones({1}));
      }),
      HasSubstr("returns a type whose tensors"));
}

}  // namespace
}  // namespace brigade
