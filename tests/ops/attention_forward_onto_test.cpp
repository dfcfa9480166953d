#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "brigade/ops/attention.h"
#include "tests/support/compare.h"
#include "tests/support/reference_ops.h"

namespace brigade::ops {
namespace {

namespace reference = testing::reference;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Attention to the keys [begin, end), of positions that ascend from 0.
AttentionOptions
options_of(const Tensor& q, int64_t begin, int64_t end, bool causal) {
  AttentionOptions options;
  options.causal = causal;
  options.query_positions = {{4, q.size(1)}};
  options.key_positions = {{begin, end - begin}};
  options.out_dtype =
      q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return options;
}

// The options' keys alone, of all.
void attend_onto(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& all,
    const AttentionOptions& options) {
  const auto [begin, numel] = options.key_positions.front();
  attention_forward_onto(
      into,
      so_far,
      {all.q, all.k.narrow(1, begin, numel), all.v.narrow(1, begin, numel)},
      options);
}

// The oracle: the whole at once, by the plain twin. Keys after the first query
// make parts of which some queries see nothing, whichever comes first.
TEST(AttentionForwardOnto, MakesAttentionOverAllKeysOfItsParts) {
  torch::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const bool causal : {false, true}) {
      const AttentionOperands all{
          (torch::randn({2, 7, 4, 5}) * 3).to(dtype),
          (torch::randn({2, 11, 2, 5}) * 3).to(dtype),
          torch::randn({2, 11, 2, 5}).to(dtype)};
      AttentionOptions options = options_of(all.q, 0, 11, causal);
      const auto wide = [](const Tensor& x) { return x.to(torch::kDouble); };
      options.out_dtype = torch::kDouble;
      const AttentionResult whole =
          reference::attention(wide(all.q), wide(all.k), wide(all.v), options);
      for (const bool latest_first : {false, true}) {
        for (const auto kernels : {Kernels::kAuto, Kernels::kAten}) {
          const auto part = [&](int64_t begin, int64_t end) {
            AttentionOptions result = options_of(all.q, begin, end, causal);
            result.kernels = kernels;
            return result;
          };
          // By heads in memory, and nothing so far.
          const auto partial =
              dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
          const AttentionResult so_far{
              torch::full({2, 4, 7, 5}, 9.0, partial).transpose(1, 2),
              torch::full({2, 4, 7}, 9.0F)};
          attend_onto(so_far, {}, all, latest_first ? part(9, 11) : part(0, 4));
          attend_onto(so_far, so_far, all, part(4, 9));
          // The last part is rounded to q's dtype where the caller wants it.
          const Tensor out = torch::full({2, 7, 6, 5}, 9.0, dtype);
          attend_onto(
              {out.narrow(2, 1, 4), so_far.lse},
              so_far,
              all,
              latest_first ? part(0, 4) : part(9, 11));
          testing::expect_close(
              out.narrow(2, 1, 4), whole.out, testing::tolerance(dtype), "out");
          testing::expect_close(
              so_far.lse, whole.lse, testing::tolerance(dtype), "lse");
          EXPECT_TRUE((out.select(2, 0) == 9).all().item<bool>());
        }
      }
    }
  }
}

TEST(AttentionForwardOnto, KeepsToTheBitWhatSeesNothingMore) {
  const Tensor q = torch::randn({1, 3, 2, 8});
  const Tensor k = torch::randn({1, 2, 2, 8});
  const AttentionResult so_far{
      torch::randn({1, 3, 2, 8}), torch::full({1, 2, 3}, -200.0F)};
  const AttentionResult before{so_far.out.clone(), so_far.lse.clone()};
  AttentionOptions options;
  options.query_positions = {{0, 3}};
  options.key_positions = {{5, 2}};
  attention_forward_onto(so_far, so_far, {q, k, k}, options);
  EXPECT_TRUE(torch::equal(so_far.out, before.out));
  EXPECT_TRUE(torch::equal(so_far.lse, before.lse));
}

TEST(AttentionForwardOnto, TakesTheRestWhereNothingWasSeen) {
  const Tensor q = torch::randn({1, 3, 2, 8});
  const Tensor k = torch::randn({1, 2, 2, 8});
  AttentionOptions options;
  options.causal = false;
  const AttentionResult alone = attention_forward({q, k, k}, options);
  const AttentionResult so_far{
      torch::zeros({1, 3, 2, 8}), torch::full({1, 2, 3}, -kInfinity)};
  attention_forward_onto(so_far, so_far, {q, k, k}, options);
  EXPECT_TRUE(torch::equal(so_far.out, alone.out));
  EXPECT_TRUE(torch::equal(so_far.lse, alone.lse));
}

TEST(AttentionForwardOnto, SurvivesScoresFarApart) {
  const Tensor one = torch::ones({1, 1, 1, 1});
  AttentionOptions options;
  options.causal = false;
  const AttentionResult so_far{one.clone(), torch::full({1, 1, 1}, 3.0e4F)};
  attention_forward_onto(
      so_far, so_far, {one * 100, one * -300, one * 5}, options);
  EXPECT_EQ(so_far.out.item<float>(), 1.0F);
  EXPECT_EQ(so_far.lse.item<float>(), 3.0e4F);
}

// dq of a part of the queries, and slices of larger gradients.
TEST(AttentionBackwardInto, AddsWhatOtherKeysGaveTheQueries) {
  torch::manual_seed(2);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const bool rotated : {false, true}) {
      const auto operand = [&](int64_t heads) {
        return torch::randn({2, 7, heads, 6}).to(dtype);
      };
      const Tensor q = operand(4);
      const Tensor k = operand(2);
      const Tensor v = operand(2);
      const Tensor dout = operand(4);
      AttentionOptions options;
      if (rotated)
        options.query_rotary =
            make_rotary_table(torch::arange(7, torch::kLong), 6, 100.0);
      const auto leaf = [](const Tensor& x) {
        return x.to(torch::kDouble).clone().requires_grad_(true);
      };
      const Tensor q_leaf = leaf(q);
      const Tensor k_leaf = leaf(k);
      const Tensor v_leaf = leaf(v);
      const AttentionResult oracle =
          reference::attention(q_leaf, k_leaf, v_leaf, options);
      oracle.out.backward(dout.to(torch::kDouble));
      const auto wide_type =
          dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
      const Tensor delta = (dout.to(wide_type) * oracle.out.detach())
                               .sum(-1)
                               .transpose(1, 2)
                               .to(wide_type);
      const Tensor so_far = torch::randn({2, 3, 4, 6}, wide_type);
      Tensor dq_oracle = q_leaf.grad().clone();
      dq_oracle.narrow(1, 2, 3).add_(so_far);
      const AttentionGradients into{
          torch::empty({2, 7, 5, 6}, dtype).narrow(2, 1, 4),
          torch::empty({2, 7, 2, 6}, wide_type),
          torch::empty({2, 9, 2, 6}, wide_type).narrow(1, 2, 7)};
      for (const auto kernels : {Kernels::kAuto, Kernels::kAten}) {
        options.kernels = kernels;
        attention_backward_into(
            into,
            {so_far, 2},
            {.operands = {q, k, v},
             .dout = dout,
             .lse = oracle.lse.to(wide_type),
             .delta = delta},
            options);
        const double limit = testing::tolerance(dtype);
        testing::expect_close(into.dq, dq_oracle, limit, "dq");
        testing::expect_close(into.dk, k_leaf.grad(), limit, "dk");
        testing::expect_close(into.dv, v_leaf.grad(), limit, "dv");
      }
    }
  }
}

}  // namespace
}  // namespace brigade::ops
