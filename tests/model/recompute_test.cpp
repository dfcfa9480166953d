#include "brigade/model/recompute.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include "brigade/base/error.h"
#include "brigade/ops/linear.h"
#include "brigade/schedule/weight_gradient_queue.h"

namespace brigade {
namespace {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakStorage weak_storage(const torch::Tensor& tensor) {
  return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
      tensor.storage().unsafeGetStorageImpl()));
}

torch::Tensor values(std::vector<int64_t> shape, double phase) {
  int64_t numel = 1;
  for (int64_t size : shape)
    numel *= size;
  return torch::sin(torch::arange(numel, torch::kFloat) * 1.3 + phase)
      .reshape(shape);
}

// Two weights with a saved activation between them.
struct Mlp {
  torch::Tensor up = values({8, 4}, 1).set_requires_grad(true);
  torch::Tensor down = values({4, 8}, 2).set_requires_grad(true);
  mutable int calls = 0;
  mutable std::vector<WeakStorage> activations;

  // [N, 4] -> [N, 4]
  torch::Tensor operator()(const torch::Tensor& input) const {
    ++calls;
    const torch::Tensor inner = torch::tanh(input.matmul(up.t()));
    activations.push_back(weak_storage(inner));
    return input + inner.matmul(down.t());
  }
  RecomputedFunction function() const {
    return [this](const std::vector<torch::Tensor>& inputs) {
      return (*this)(inputs[0]);
    };
  }
};

TEST(Recompute, GradientsAreThoseOfPlainAutogradToTheLastBit) {
  const Mlp plain;
  const Mlp recomputed;
  const torch::Tensor a = values({3, 4}, 3).set_requires_grad(true);
  const torch::Tensor b = values({3, 4}, 3).set_requires_grad(true);
  const torch::Tensor output = recompute(recomputed.function(), {b * 2});
  EXPECT_TRUE(torch::equal(plain(a * 2), output));
  plain(a * 2).square().sum().backward();
  output.square().sum().backward();
  EXPECT_EQ(recomputed.calls, 2);
  EXPECT_TRUE(torch::equal(a.grad(), b.grad()));
  EXPECT_TRUE(torch::equal(plain.up.grad(), recomputed.up.grad()));
  EXPECT_TRUE(torch::equal(plain.down.grad(), recomputed.down.grad()));
}

TEST(Recompute, FreesTheActivationsUntilBackward) {
  const Mlp plain;
  const Mlp recomputed;
  const torch::Tensor input = values({3, 4}, 3).set_requires_grad(true);
  const torch::Tensor kept = plain(input);
  const torch::Tensor freed = recompute(recomputed.function(), {input});
  EXPECT_FALSE(plain.activations.at(0).expired());
  EXPECT_TRUE(recomputed.activations.at(0).expired());
  freed.sum().backward();
  // It is made again in backward, and gone after it.
  ASSERT_EQ(recomputed.activations.size(), 2u);
  EXPECT_TRUE(recomputed.activations.at(1).expired());
}

TEST(Recompute, KeepsSeveralMicroBatchesApart) {
  const Mlp plain;
  const Mlp recomputed;
  std::vector<torch::Tensor> outputs;
  for (int k = 0; k < 3; ++k) {
    const torch::Tensor input = values({3, 4}, k);
    plain(input).square().sum().backward();
    outputs.push_back(recompute(recomputed.function(), {input}));
  }
  for (const torch::Tensor& output : outputs)
    output.square().sum().backward();
  EXPECT_TRUE(torch::equal(plain.up.grad(), recomputed.up.grad()));
  EXPECT_TRUE(torch::equal(plain.down.grad(), recomputed.down.grad()));
}

TEST(Recompute, ParametersLearnWhenNoInputDoes) {
  const Mlp mlp;
  recompute(mlp.function(), {values({3, 4}, 1)}).sum().backward();
  EXPECT_TRUE(mlp.up.grad().defined());
}

TEST(Recompute, RunsTheHooksOfParameters) {
  const Mlp mlp;
  int fired = 0;
  struct Count : torch::autograd::FunctionPostHook {
    explicit Count(int& count) : count_(count) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list&) override {
      ++count_;
      return outputs;
    }
    int& count_;
  };
  const auto accumulator = torch::autograd::impl::grad_accumulator(mlp.up);
  accumulator->add_post_hook(std::make_unique<Count>(fired));
  const torch::Tensor one = recompute(mlp.function(), {values({3, 4}, 1)});
  const torch::Tensor two = recompute(mlp.function(), {one});
  EXPECT_EQ(fired, 0);
  two.sum().backward();
  EXPECT_EQ(fired, 2);
}

TEST(Recompute, Nests) {
  const Mlp plain;
  const Mlp recomputed;
  const torch::Tensor a = values({3, 4}, 3).set_requires_grad(true);
  const torch::Tensor b = values({3, 4}, 3).set_requires_grad(true);
  const auto block = [&](const std::vector<torch::Tensor>& inputs) {
    return recompute(recomputed.function(), inputs).sigmoid();
  };
  torch::Tensor x = a;
  torch::Tensor y = b;
  for (int i = 0; i < 3; ++i) {
    x = plain(x).sigmoid();
    y = recompute(block, {y});
  }
  x.sum().backward();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(a.grad(), b.grad()));
  EXPECT_TRUE(torch::equal(plain.down.grad(), recomputed.down.grad()));
}

TEST(Recompute, DefersWeightGradientsOfItsLinears) {
  const auto run = [](bool with_recompute, WeightGradientQueue* queue) {
    const torch::Tensor weight = values({4, 4}, 1).set_requires_grad(true);
    weight.mutable_grad() = torch::zeros({4, 4});
    ops::LinearOptions options;
    options.weight_grad = ops::WeightGrad::kAccumulate;
    options.defer_weight_grad = [queue](std::function<void()> compute) {
      queue->add(std::move(compute));
    };
    const auto function = [&](const std::vector<torch::Tensor>& inputs) {
      return ops::linear(inputs[0], weight, {}, options).tanh();
    };
    const std::vector<torch::Tensor> inputs{
        values({3, 4}, 2).set_requires_grad(true)};
    const torch::Tensor output =
        with_recompute ? recompute(function, inputs) : function(inputs);
    output.sum().backward();
    const torch::Tensor before = weight.grad().clone();
    for (const auto& work : queue->take())
      work();
    return std::pair(before, weight.grad());
  };
  WeightGradientQueue at_once;
  WeightGradientQueue deferring;
  deferring.start_deferring();
  const auto [direct, same] = run(false, &at_once);
  const auto [before, after] = run(true, &deferring);
  EXPECT_EQ(before.abs().sum().item<float>(), 0);
  EXPECT_GT(direct.abs().sum().item<float>(), 0);
  EXPECT_TRUE(torch::equal(direct, after));
}

TEST(Recompute, TakesUndefinedAndConstantInputs) {
  const torch::Tensor weight = values({4}, 1).set_requires_grad(true);
  const torch::Tensor mask = torch::ones({4}, torch::kBool);
  const torch::Tensor output = recompute(
      [&](const std::vector<torch::Tensor>& inputs) {
        EXPECT_FALSE(inputs[1].defined());
        return torch::where(inputs[0], weight, torch::zeros({4}));
      },
      {mask, torch::Tensor()});
  output.sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({4})));
}

// The mask of the second run is the first one's, and what is drawn afterwards
// is what plain autograd leaves to be drawn.
void expect_dropout_recomputed(torch::Device device) {
  const RecomputedFunction dropped = [](const auto& inputs) {
    return torch::dropout(inputs[0], /*p=*/0.5, /*train=*/true);
  };
  const RecomputedFunction nested = [&](const auto& inputs) {
    return recompute(dropped, {torch::dropout(inputs[0], 0.25, true)});
  };
  for (const RecomputedFunction& function : {dropped, nested}) {
    torch::manual_seed(5);
    const torch::Tensor ones =
        torch::ones({1000}, torch::TensorOptions(device));
    const torch::Tensor x = ones.clone().requires_grad_();
    const torch::Tensor output = recompute(function, {x});
    const torch::Tensor between = torch::rand({3}, ones.options());
    output.sum().backward();
    const torch::Tensor after = torch::rand({3}, ones.options());
    // The input is ones: both the gradient and the output are the mask.
    EXPECT_TRUE(torch::equal(x.grad(), output));
    EXPECT_GT(x.grad().count_nonzero().item<int64_t>(), 0);
    torch::manual_seed(5);
    EXPECT_TRUE(torch::equal(function({ones}), output));
    EXPECT_TRUE(torch::equal(torch::rand({3}, ones.options()), between));
    EXPECT_TRUE(torch::equal(torch::rand({3}, ones.options()), after));
  }
}

TEST(Recompute, DropoutHasOneMask) {
  expect_dropout_recomputed(torch::kCPU);
}

TEST(Recompute, DropoutOnAGpuHasOneMask) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no GPU";
  expect_dropout_recomputed(torch::Device(torch::kCUDA, 0));
}

TEST(Recompute, AGradientOfItsGradientIsAnError) {
  const Mlp mlp;
  const torch::Tensor x = values({3, 4}, 3).set_requires_grad(true);
  const torch::Tensor gradient = torch::autograd::grad(
      {recompute(mlp.function(), {x}).sum()}, {x}, {}, true, true)[0];
  EXPECT_THROW(gradient.square().sum().backward(), Error);
}

TEST(Recompute, IsTheFunctionItselfWithoutGradMode) {
  const Mlp mlp;
  const torch::NoGradGuard no_gradients;
  const torch::Tensor output = recompute(mlp.function(), {values({3, 4}, 1)});
  EXPECT_FALSE(output.requires_grad());
  EXPECT_EQ(mlp.calls, 1);
}

TEST(Recompute, RefusesASecondBackward) {
  const Mlp mlp;
  const torch::Tensor output = recompute(mlp.function(), {values({3, 4}, 1)});
  const torch::Tensor loss = output.sum();
  loss.backward();
  EXPECT_ANY_THROW(loss.backward());
}

}  // namespace
}  // namespace brigade
