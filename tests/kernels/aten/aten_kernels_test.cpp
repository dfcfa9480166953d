// What the ATen kernels are held to beyond their results, which tests/ops
// compares with both the CPU kernels and the reference: that no value is read
// on the host, and how much memory they take.
#include <gtest/gtest.h>
#include <torch/types.h>

#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/libtorch_versions.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "tests/support/memory_meter.h"
#include "tests/support/reference_ops.h"

namespace brigade::ops {
namespace {

// Tensors of the meta device have shapes and no values: reading one fails.
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
      {flat(torch::kFloat),
       flat(torch::kFloat),
       flat(torch::kFloat),
       flat(torch::kBFloat16),
       flat(torch::kShort)},
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

// Fewer bytes than one block of queries against all keys would take.
TEST(AtenKernels, AttentionHoldsNoScoresWhereLibtorchHasFlashKernels) {
  constexpr int64_t kTokens = 8192;
  const Tensor q = torch::ones({1, kTokens, 2, 4}).requires_grad_(true);
  const Tensor k = torch::ones({1, kTokens, 1, 4});
  if (!has_flash_attention(q.detach(), k, k))
    GTEST_SKIP() << "this libtorch has none on the CPU";
  AttentionOptions options;
  options.kernels = Kernels::kAten;
  const testing::MemoryMeter meter;
  attention(q, k, k, options).out.sum().backward();
  EXPECT_LT(meter.peak_bytes(), 512 * kTokens * 4);
}

// The flash kernels get a made-up result, with the right dot products.
TEST(AtenKernels, AttentionGoesBackThroughRowsWithTinyOrNoGradients) {
  torch::manual_seed(1);
  const Tensor values = torch::randn({1, 6, 2, 8});
  const Tensor scale = torch::tensor({1.0, 1e-30, 0.0, 1e-25, 1.0, 1e-12});
  const Tensor dout = torch::randn({1, 6, 2, 8}) * scale.view({1, 6, 1, 1});
  AttentionOptions options;
  options.kernels = Kernels::kAten;
  const Tensor q = values.clone().requires_grad_(true);
  attention(q, values, values, options).out.backward(dout);
  const Tensor wide = values.to(torch::kDouble);
  const Tensor twin = wide.clone().requires_grad_(true);
  testing::reference::attention(twin, wide, wide, options)
      .out.backward(dout.to(torch::kDouble));
  // The first query sees one key: its gradient is 0 but for rounding.
  for (int64_t row = 1; row < 6; ++row) {
    SCOPED_TRACE(row);
    const Tensor expected = twin.grad().select(1, row);
    const Tensor error = q.grad().select(1, row) - expected;
    const auto norm = expected.norm().item<double>();
    EXPECT_LE(error.norm().item<double>(), 1e-5 * norm);
    EXPECT_EQ(norm == 0, row == 2);
  }
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
