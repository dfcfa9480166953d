// What the ATen kernels are held to beyond their results, which tests/ops
// compares with both the CPU kernels and the reference: that no value is read
// on the host, and how much memory they take.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "tests/support/memory_meter.h"

namespace brigade::ops {
namespace {

// Tensors of the meta device have shapes and no values: whoever reads one
// fails.
Tensor meta(at::IntArrayRef sizes, torch::ScalarType dtype = torch::kBFloat16) {
  return torch::empty(sizes, torch::dtype(dtype).device(torch::kMeta));
}

Tensor weight_with_main_grad(at::IntArrayRef sizes) {
  Tensor weight = meta(sizes).requires_grad_(true);
  weight.mutable_grad() = meta(sizes, torch::kFloat);
  return weight;
}

TEST(AtenKernels, ALayersForwardAndBackwardReadNoValueOnTheHost) {
  const Tensor x = meta({2, 6, 16}).requires_grad_(true);
  const Tensor norm = weight_with_main_grad({16});
  const Tensor q_weight = weight_with_main_grad({16, 16});
  const Tensor kv_weight = weight_with_main_grad({8, 16});
  const Tensor up_weight = weight_with_main_grad({32, 16});
  const Tensor down_weight = weight_with_main_grad({16, 16});
  const auto grad = WeightGrad::kAccumulate;
  const auto [normed, sum] = add_rms_norm(x, x, norm, 1e-5, grad);
  const auto qkv =
      linear_group(normed, {q_weight, kv_weight, kv_weight}, {}, grad);
  AttentionOptions options;
  options.query_rotary =
      RotaryTable{meta({6, 2}, torch::kFloat), meta({6, 2}, torch::kFloat)};
  options.sliding_window = 4;
  options.logit_soft_cap = 30.0;
  const auto heads = [](const Tensor& flat) {
    return flat.unflatten(2, {-1, 4});
  };
  const AttentionResult attended =
      attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), options);
  const Tensor gate_up =
      linear(attended.out.flatten(2, 3), up_weight, {}, grad);
  const Tensor out = linear(swiglu(gate_up), down_weight, {}, grad) + sum;
  out.backward(meta(out.sizes()));
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(attended.lse.sizes(), at::IntArrayRef({2, 4, 6}));
}

TEST(AtenKernels, TheEmbeddingAndTheHeadReadNoValueOnTheHost) {
  const Tensor table = weight_with_main_grad({50, 16});
  const Tensor ids = meta({12}, torch::kLong);
  const Tensor hidden = embedding(ids, table, WeightGrad::kAccumulate);
  const Tensor loss = linear_cross_entropy(
      hidden,
      table,
      meta({12}, torch::kLong),
      {.weight_grad = WeightGrad::kAccumulate, .known_gradient = 1.0});
  loss.backward(meta({}, torch::kFloat));
  EXPECT_EQ(loss.dim(), 0);
}

TEST(AtenKernels, TheOptimizerReadsNoValueOnTheHost) {
  const auto flat = [](torch::ScalarType dtype) { return meta({100}, dtype); };
  adamw_step(
      {},
      flat(torch::kFloat),
      flat(torch::kFloat),
      flat(torch::kFloat),
      flat(torch::kBFloat16),
      flat(torch::kShort),
      AfterRead::kZero);
  EXPECT_EQ(sum_of_squares(flat(torch::kFloat)).scalar_type(), torch::kDouble);
}

TEST(AtenKernels, AttentionNeverHoldsAllScores) {
  constexpr int64_t kTokens = 4096;
  AttentionOptions options;
  options.kernels = Kernels::kAten;
  const Tensor q = torch::ones({1, kTokens, 2, 4}).requires_grad_(true);
  const Tensor k = torch::ones({1, kTokens, 1, 4});
  const testing::MemoryMeter meter;
  attention(q, k, k, options).out.sum().backward();
  constexpr int64_t kAllScores = 2 * kTokens * kTokens * sizeof(float);
  EXPECT_LT(meter.peak_bytes(), kAllScores);
}

TEST(AtenKernels, TheHeadNeverHoldsAllLogits) {
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kVocabulary = 4096;
  const Tensor hidden = torch::ones({kTokens, 4}).requires_grad_(true);
  const Tensor weight = torch::ones({kVocabulary, 4});
  const Tensor targets = torch::zeros({kTokens}, torch::kLong);
  const testing::MemoryMeter meter;
  linear_cross_entropy(hidden, weight, targets, {.kernels = Kernels::kAten})
      .backward();
  constexpr int64_t kAllLogits = kTokens * kVocabulary * sizeof(float);
  EXPECT_LT(meter.peak_bytes(), kAllLogits / 2);
}

// Products of bf16 are summed in float32 and go into the float32 gradient
// unrounded.
TEST(AtenKernels, AWeightsGradientIsNotRoundedToBf16) {
  const Tensor ones = torch::ones({257, 1}, torch::kBFloat16);
  Tensor weight_grad = torch::zeros({1, 1});
  linear_backward_weight(ones, ones, weight_grad, Kernels::kAten);
  EXPECT_EQ(weight_grad.item<float>(), 257.0F);
}

}  // namespace
}  // namespace brigade::ops
