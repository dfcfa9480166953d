// rms_norm, SwiGLU, rotary and linears of both kernel sets against the
// reference in float64, and in bf16 against what PyTorch's own bf16 ops make of
// the same inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/geglu.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "tests/support/reference_ops.h"

namespace brigade::ops {
namespace {

namespace reference = testing::reference;

using Inputs = std::vector<Tensor>;
using Op = std::function<std::vector<Tensor>(const Inputs&)>;
// An op of ours by the given kernels.
using OurOp =
    std::function<std::vector<Tensor>(const Inputs&, const OpOptions&)>;

// Outputs, then gradients of the inputs, for incoming gradients that depend on
// the output's index only.
std::vector<Tensor>
run(const std::vector<Tensor>& inputs, torch::ScalarType dtype, const Op& op) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs)
    leaves.push_back(x.to(dtype).clone().requires_grad_(true));
  const std::vector<Tensor> outputs = op(leaves);
  Tensor total;
  std::vector<Tensor> result;
  for (const Tensor& out : outputs) {
    const Tensor gradient =
        torch::linspace(-1.0, 1.3, out.numel()).view(out.sizes());
    const Tensor part = (out.to(torch::kDouble) *
                         gradient.to(torch::kBFloat16).to(torch::kDouble))
                            .sum();
    total = total.defined() ? total + part : part;
    result.push_back(out.detach().to(torch::kDouble));
  }
  total.backward();
  for (const Tensor& leaf : leaves)
    result.push_back(leaf.grad().to(torch::kDouble));
  return result;
}

double relative(const Tensor& value, const Tensor& oracle) {
  return ((value - oracle).norm() / (oracle.norm() + 1e-3)).item<double>();
}

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  OurOp ours;
  Op plain;
  Op torchs;  // in bf16, as PyTorch's users write it
  bool rounds_once = true;
};

constexpr double kEps = 1e-5;

std::vector<Case> cases() {
  const auto table = make_rotary_table(
      torch::tensor({0, 1, 7, 300, 4095}, torch::kLong), 12, 10000.0);
  const auto torchs_norm = [](const Tensor& x, const Tensor& weight) {
    return x * torch::rsqrt(x.square().mean(-1, true) + kEps) * weight;
  };
  const auto torchs_rotate = [table](const Tensor& x) {
    const Tensor cos =
        torch::cat({table.cos, table.cos}, -1).unsqueeze(1).to(x.scalar_type());
    const Tensor sin =
        torch::cat({table.sin, table.sin}, -1).unsqueeze(1).to(x.scalar_type());
    const auto halves = x.chunk(2, -1);
    return x * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
  };
  return {
      {"rms_norm",
       {{3, 50, 37}, {37}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return {ops::rms_norm(x[0], x[1], kEps, options)};
       },
       [](auto x) -> std::vector<Tensor> {
         return {reference::rms_norm(x[0], x[1], kEps)};
       },
       [=](auto x) -> std::vector<Tensor> {
         return {torchs_norm(x[0], x[1])};
       }},
      {"add_rms_norm",
       {{300, 48}, {300, 48}, {48}},
       [](auto x, auto options) -> std::vector<Tensor> {
         const auto [normed, sum] =
             add_rms_norm(x[0], x[1], x[2], kEps, options);
         return {normed, sum};
       },
       [](auto x) -> std::vector<Tensor> {
         const auto [normed, sum] =
             reference::add_rms_norm(x[0], x[1], x[2], kEps);
         return {normed, sum};
       },
       [=](auto x) -> std::vector<Tensor> {
         const Tensor sum = x[0] + x[1];
         return {torchs_norm(sum, x[2]), sum};
       },
       // What is normed is the sum that is handed on.
       /*rounds_once=*/false},
      {"rms_norm_by_one_plus_weight",
       {{3, 50, 37}, {37}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return {ops::rms_norm(x[0], x[1], {kEps, 1.0}, options)};
       },
       [](auto x) -> std::vector<Tensor> {
         return {reference::rms_norm(x[0], x[1] + 1, kEps)};
       },
       [=](auto x) -> std::vector<Tensor> {
         return {torchs_norm(x[0], x[1] + 1)};
       }},
      {"add_rms_norm_by_one_plus_weight",
       {{300, 48}, {300, 48}, {48}},
       [](auto x, auto options) -> std::vector<Tensor> {
         const auto [normed, sum] =
             add_rms_norm(x[0], x[1], x[2], {kEps, 1.0}, options);
         return {normed, sum};
       },
       [](auto x) -> std::vector<Tensor> {
         const auto [normed, sum] =
             reference::add_rms_norm(x[0], x[1], x[2] + 1, kEps);
         return {normed, sum};
       },
       [=](auto x) -> std::vector<Tensor> {
         const Tensor sum = x[0] + x[1];
         return {torchs_norm(sum, x[2] + 1), sum};
       },
       // What is normed is the sum that is handed on.
       /*rounds_once=*/false},
      {"geglu",
       {{2, 9, 45}, {2, 9, 45}},
       [](auto x, auto) -> std::vector<Tensor> { return {geglu(x[0], x[1])}; },
       [](auto x) -> std::vector<Tensor> {
         // By the formula, not by torch::gelu.
         const Tensor inner =
             std::sqrt(2 / M_PI) * (x[0] + 0.044715 * x[0].pow(3));
         return {0.5 * x[0] * (1 + torch::tanh(inner)) * x[1]};
       },
       [](auto x) -> std::vector<Tensor> {
         return {torch::gelu(x[0], "tanh") * x[1]};
       }},
      {"swiglu",
       {{2, 9, 45}, {2, 9, 45}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return {swiglu(x[0], x[1], options.kernels)};
       },
       [](auto x) -> std::vector<Tensor> {
         return {reference::swiglu(x[0], x[1])};
       },
       [](auto x) -> std::vector<Tensor> {
         return {torch::silu(x[0]) * x[1]};
       }},
      {"swiglu_of_one_buffer",
       {{5, 70}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return {swiglu(x[0], options.kernels)};
       },
       [](auto x) -> std::vector<Tensor> {
         return {
             reference::swiglu(x[0].narrow(1, 0, 35), x[0].narrow(1, 35, 35))};
       },
       [](auto x) -> std::vector<Tensor> {
         return {torch::silu(x[0].narrow(1, 0, 35)) * x[0].narrow(1, 35, 35)};
       }},
      {"rotary",
       {{2, 5, 3, 12}, {2, 5, 1, 12}},
       [=](auto x, auto options) -> std::vector<Tensor> {
         const auto [q, k] = ops::rotary(x[0], x[1], table, options.kernels);
         return {q, k};
       },
       [=](auto x) -> std::vector<Tensor> {
         const auto [q, k] = reference::rotary(x[0], x[1], table);
         return {q, k};
       },
       [=](auto x) -> std::vector<Tensor> {
         return {torchs_rotate(x[0]), torchs_rotate(x[1])};
       }},
      {"linear",
       {{3, 7, 20}, {33, 20}, {33}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return {ops::linear(x[0], x[1], x[2], options)};
       },
       [](auto x) -> std::vector<Tensor> {
         return {torch::matmul(x[0], x[1].t()) + x[2]};
       },
       [](auto x) -> std::vector<Tensor> {
         return {torch::linear(x[0], x[1], x[2])};
       }},
      {"linear_group",
       {{40, 24}, {16, 24}, {8, 24}, {8, 24}},
       [](auto x, auto options) -> std::vector<Tensor> {
         return linear_group(x[0], {x[1], x[2], x[3]}, {}, options);
       },
       [](auto x) -> std::vector<Tensor> {
         return {
             torch::matmul(x[0], x[1].t()),
             torch::matmul(x[0], x[2].t()),
             torch::matmul(x[0], x[3].t())};
       },
       [](auto x) -> std::vector<Tensor> {
         return {
             torch::linear(x[0], x[1]),
             torch::linear(x[0], x[2]),
             torch::linear(x[0], x[3])};
       }},
  };
}

class OpOf : public ::testing::TestWithParam<std::tuple<Case, Kernels>> {
 protected:
  const Case& op() const { return std::get<0>(GetParam()); }
  std::vector<Tensor> inputs() const {
    torch::manual_seed(3);
    std::vector<Tensor> result;
    for (const auto& shape : op().shapes)
      result.push_back(torch::randn(shape).to(torch::kBFloat16));
    return result;
  }
  std::vector<Tensor> run_ours(torch::ScalarType dtype) const {
    const OpOptions options{WeightGrad::kReturn, std::get<1>(GetParam())};
    return run(inputs(), dtype, [&](const Inputs& x) {
      return op().ours(x, options);
    });
  }
};

// More rows than are computed at a time, against sequence by sequence.
TEST(Geglu, OfManyRowsIsThatOfFew) {
  const auto gate = torch::randn({3, 400, 1024}).to(torch::kBFloat16);
  const auto up = torch::randn({3, 400, 1024}).to(torch::kBFloat16);
  const auto run = [](const Tensor& gate_value, const Tensor& up_value) {
    const auto x = gate_value.clone().requires_grad_();
    const auto y = up_value.clone().requires_grad_();
    const auto out = geglu(x, y);
    out.sum().backward();
    return torch::stack({out.detach(), x.grad(), y.grad()}, -1);
  };
  const auto all = run(gate, up);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::equal(all[i], run(gate[i], up[i]))) << i;
}

TEST_P(OpOf, AgreesWithFloat64AndIsNoFurtherThanTorchs) {
  const auto oracle = run(inputs(), torch::kDouble, op().plain);
  const auto wide = run_ours(torch::kFloat);
  const auto narrow = run_ours(torch::kBFloat16);
  const auto torchs = run(inputs(), torch::kBFloat16, op().torchs);
  for (size_t i = 0; i < oracle.size(); ++i) {
    EXPECT_LT(relative(wide[i], oracle[i]), 1e-6) << "result " << i;
    EXPECT_LT(relative(narrow[i], oracle[i]), 6e-3) << "result " << i;
    // A hair of slack: where both round once, they tie.
    EXPECT_LE(
        relative(narrow[i], oracle[i]), 1.02 * relative(torchs[i], oracle[i]))
        << "result " << i;
    if (!op().rounds_once)
      continue;
    // What no op with bf16 results is nearer than.
    const Tensor rounded = oracle[i].to(torch::kBFloat16).to(torch::kDouble);
    EXPECT_LE(
        relative(narrow[i], oracle[i]), 1.02 * relative(rounded, oracle[i]))
        << "result " << i;
  }
}

TEST_P(OpOf, IsExactInFloat64) {
  if (std::get<1>(GetParam()) == Kernels::kCpu)
    GTEST_SKIP() << "the CPU kernels take float32 and bf16";
  const auto oracle = run(inputs(), torch::kDouble, op().plain);
  const auto ours = run_ours(torch::kDouble);
  for (size_t i = 0; i < oracle.size(); ++i)
    EXPECT_LT(relative(ours[i], oracle[i]), 1e-12) << "result " << i;
}

INSTANTIATE_TEST_SUITE_P(
    Ops,
    OpOf,
    ::testing::Combine(
        ::testing::ValuesIn(cases()),
        ::testing::Values(Kernels::kCpu, Kernels::kAten)),
    [](const auto& test) {
      const bool is_cpu = std::get<1>(test.param) == Kernels::kCpu;
      return std::string(std::get<0>(test.param).name) +
             (is_cpu ? "_cpu" : "_aten");
    });

// The data parallel's flat buffers hold parameters in reverse; gradients of a
// user's own may lie apart.
TEST(
    LinearGroup,
    DeclaredWeightsThatAreAdjacentMakeOneProductOfTheSameNumbers) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({50, 32});
  const std::vector<int64_t> rows{16, 8, 8};
  for (const bool declared : {false, true}) {
    for (const bool reversed : {false, true}) {
      for (const bool grads_together : {false, true}) {
        const Tensor flat = torch::randn({32 * 32});
        const Tensor flat_grad = torch::zeros({32 * 32});
        std::vector<Tensor> weights;
        std::vector<Tensor> twins;
        int64_t offset = 0;
        for (size_t i = 0; i < 3; ++i) {
          const int64_t numel = rows[i] * 32;
          const int64_t begin = reversed ? 32 * 32 - offset - numel : offset;
          offset += numel;
          Tensor weight = flat.narrow(0, begin, numel)
                              .view({rows[i], 32})
                              .detach()
                              .requires_grad_(true);
          weight.mutable_grad() =
              grads_together ? flat_grad.narrow(0, begin, numel).view_as(weight)
                             : torch::zeros({rows[i], 32});
          weights.push_back(weight);
          twins.push_back(weight.detach().clone().requires_grad_(true));
        }
        const Tensor input = x.clone().requires_grad_(true);
        const Tensor twin_input = x.clone().requires_grad_(true);
        const auto outputs = linear_group(
            input,
            weights,
            {},
            LinearOptions{
                .weight_grad = WeightGrad::kAccumulate,
                .group = declared ? WeightGroup::kOneMatrix
                                  : WeightGroup::kSeparate});
        Tensor total = torch::zeros({});
        Tensor twin_total = torch::zeros({});
        for (size_t i = 0; i < 3; ++i) {
          const Tensor twin = torch::matmul(twin_input, twins[i].t());
          EXPECT_TRUE(torch::allclose(outputs[i], twin, 1e-5, 1e-5));
          total = total + outputs[i].square().sum() * (i + 1.0);
          twin_total = twin_total + twin.square().sum() * (i + 1.0);
        }
        // Slices of one buffer: one product made them.
        EXPECT_EQ(outputs[0].stride(0), declared ? 32 : 16);
        total.backward();
        twin_total.backward();
        EXPECT_TRUE(
            torch::allclose(input.grad(), twin_input.grad(), 1e-4, 1e-3));
        for (size_t i = 0; i < 3; ++i)
          EXPECT_TRUE(
              torch::allclose(weights[i].grad(), twins[i].grad(), 1e-4, 1e-3));
      }
    }
  }
}

TEST(Linear, TheInputsGradientIsInterceptedBeforeTheWeightsIsComputed) {
  Tensor weight = torch::ones({2, 3}).requires_grad_(true);
  weight.mutable_grad() = torch::zeros({2, 3});
  std::vector<std::string> events;
  LinearOptions options;
  options.weight_grad = WeightGrad::kAccumulate;
  options.on_input_grad = [&](Tensor input_grad) {
    EXPECT_EQ(input_grad.sum().item<float>(), 6.0F);
    EXPECT_EQ(weight.grad().sum().item<float>(), 0.0F);
    events.emplace_back("launched");
    return [&] {
      EXPECT_EQ(weight.grad().sum().item<float>(), 6.0F);
      events.emplace_back("waited");
    };
  };
  ops::linear(torch::ones({1, 3}).requires_grad_(true), weight, {}, options)
      .sum()
      .backward();
  EXPECT_EQ(events, (std::vector<std::string>{"launched", "waited"}));
}

TEST(Linear, ADeferredWeightGradientIsComputedWhenAsked) {
  Tensor weight = torch::ones({2, 3}).requires_grad_(true);
  weight.mutable_grad() = torch::zeros({2, 3});
  std::vector<std::function<void()>> deferred;
  LinearOptions options;
  options.weight_grad = WeightGrad::kAccumulate;
  options.defer_weight_grad = [&](std::function<void()> compute) {
    deferred.push_back(std::move(compute));
  };
  ops::linear(torch::ones({1, 3}), weight, {}, options).sum().backward();
  EXPECT_EQ(weight.grad().sum().item<float>(), 0.0F);
  ASSERT_EQ(deferred.size(), 1U);
  deferred[0]();
  EXPECT_EQ(weight.grad().sum().item<float>(), 6.0F);
}

class LinearInput : public ::testing::TestWithParam<WeightGrad> {};

TEST_P(LinearInput, IsNotKeptAndChangesNoGradientWhereItIsMadeAgain) {
  torch::manual_seed(6);
  const Tensor gate = torch::randn({40, 64});
  const Tensor up = torch::randn({40, 64});
  const Tensor values = torch::randn({32, 64});
  const auto activation = [](const std::vector<Tensor>& of) {
    return swiglu(of[0], of[1]);
  };
  std::vector<std::vector<Tensor>> gradients;
  for (const bool made_again : {false, true}) {
    const std::vector<Tensor> halves{
        gate.clone().requires_grad_(true), up.clone().requires_grad_(true)};
    Tensor weight = values.clone().requires_grad_(true);
    if (GetParam() == WeightGrad::kAccumulate)
      weight.mutable_grad() = torch::zeros_like(values);
    LinearOptions options{.weight_grad = GetParam()};
    if (made_again)
      options.input = {halves, activation};
    Tensor x = activation(halves);
    const c10::weak_intrusive_ptr<c10::TensorImpl> watched(x.getIntrusivePtr());
    const Tensor y = ops::linear(x, weight, {}, options);
    x.reset();
    EXPECT_EQ(watched.expired(), made_again);
    const Tensor loss = y.square().sum();
    // Twice: what x is made of is kept as long as the graph.
    loss.backward({}, true);
    loss.backward();
    gradients.push_back({halves[0].grad(), halves[1].grad(), weight.grad()});
  }
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Gradients,
    LinearInput,
    ::testing::Values(WeightGrad::kReturn, WeightGrad::kAccumulate));

TEST(Linear, ShapesThatDoNotFitAreNamed) {
  EXPECT_THAT(
      [&] {
        ops::linear(torch::ones({2, 3}), torch::ones({5, 4}));
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("Float [5, 4]")));
}

}  // namespace
}  // namespace brigade::ops
