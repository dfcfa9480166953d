#include "brigade/context_parallel/merge_partials.h"

#include <gtest/gtest.h>

#include <limits>

#include "brigade/ops/plain.h"
#include "tests/support/compare.h"

namespace brigade {
namespace {

using ops::AttentionResult;
using torch::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

AttentionResult attend(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    int64_t begin,
    int64_t end) {
  ops::AttentionOptions options;
  options.causal = false;
  return ops::plain::attention(
      q,
      k.narrow(1, begin, end - begin),
      v.narrow(1, begin, end - begin),
      options);
}

AttentionResult copy(const AttentionResult& result) {
  return {result.out.clone(), result.lse.clone()};
}

TEST(MergePartials, MakesAttentionOverAllKeysOfItsParts) {
  torch::manual_seed(1);
  const Tensor q = torch::randn({2, 3, 4, 5}) * 3;
  const Tensor k = torch::randn({2, 9, 2, 5}) * 3;
  const Tensor v = torch::randn({2, 9, 2, 5});
  AttentionResult merged = copy(attend(q, k, v, 0, 4));
  merge_partials(merged, attend(q, k, v, 4, 5));
  merge_partials(merged, attend(q, k, v, 5, 9));
  const AttentionResult whole = attend(q, k, v, 0, 9);
  testing::expect_close(merged.out, whole.out, 1e-6, "out");
  testing::expect_close(merged.lse, whole.lse, 1e-6, "lse");
}

TEST(MergePartials, KeepsTheOtherPartWhereOneSeesNothing) {
  const Tensor out = torch::full({1, 1, 1, 2}, 0.1F);
  const Tensor nothing = torch::zeros({1, 1, 1, 2});
  const Tensor lse = torch::full({1, 1, 1}, -200.0F);
  const Tensor no_lse = torch::full({1, 1, 1}, -kInfinity);
  AttentionResult a{out.clone(), lse.clone()};
  merge_partials(a, {nothing, no_lse});
  EXPECT_TRUE(torch::equal(a.out, out));
  EXPECT_TRUE(torch::equal(a.lse, lse));
  AttentionResult b{nothing.clone(), no_lse.clone()};
  merge_partials(b, {out, lse});
  EXPECT_TRUE(torch::equal(b.out, out));
  EXPECT_TRUE(torch::equal(b.lse, lse));
  AttentionResult c{nothing.clone(), no_lse.clone()};
  merge_partials(c, {nothing, no_lse});
  EXPECT_TRUE(torch::equal(c.out, nothing));
  EXPECT_TRUE(torch::equal(c.lse, no_lse));
}

TEST(MergePartials, SurvivesScoresFarApart) {
  AttentionResult a{
      torch::full({1, 1, 1, 1}, 1.0F), torch::full({1, 1, 1}, 3.0e4F)};
  merge_partials(
      a, {torch::full({1, 1, 1, 1}, 5.0F), torch::full({1, 1, 1}, -3.0e4F)});
  EXPECT_EQ(a.out.item<float>(), 1.0F);
  EXPECT_EQ(a.lse.item<float>(), 3.0e4F);
}

TEST(MergePartials, WritesOnlyTheSliceItWasGiven) {
  AttentionResult whole{torch::ones({1, 4, 1, 2}), torch::zeros({1, 1, 4})};
  merge_partials(
      {whole.out.narrow(1, 2, 2), whole.lse.narrow(2, 2, 2)},
      {torch::full({1, 2, 1, 2}, 3.0F), torch::zeros({1, 1, 2})});
  EXPECT_TRUE(
      torch::equal(whole.out.narrow(1, 0, 2), torch::ones({1, 2, 1, 2})));
  EXPECT_TRUE(
      torch::equal(whole.out.narrow(1, 2, 2), torch::full({1, 2, 1, 2}, 2.0F)));
}

TEST(MergePartials, EqualsItsPlainTwin) {
  torch::manual_seed(2);
  for (const int64_t head_dim : {1, 6, 48, 67}) {
    const auto random = [&] {
      return AttentionResult{
          torch::randn({2, 5, 3, head_dim}), torch::randn({2, 3, 5}) * 4};
    };
    const AttentionResult whole = random();
    const AttentionResult part = random();
    AttentionResult merged = copy(whole);
    merge_partials(merged, part);
    const AttentionResult oracle = copy(whole);
    ops::plain::merge_attention(oracle, part);
    testing::expect_close(merged.out, oracle.out, 1e-6, "out");
    testing::expect_close(merged.lse, oracle.lse, 1e-6, "lse");
  }
}

TEST(AddPartialGradient, AddsTheTokensItIsOfAndRotatesThemBack) {
  torch::manual_seed(3);
  const ops::RotaryTable table =
      ops::make_rotary_table(torch::arange(2, 5, torch::kLong), 6, 100.0);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const bool rotated : {false, true}) {
      const auto wide =
          dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
      const Tensor own = torch::randn({2, 7, 3, 6}, wide);
      const Tensor other = torch::randn({2, 3, 3, 6}, wide);
      // A slice of a wider row, as gradients lie.
      const Tensor sum = torch::full({2, 7, 5, 6}, 9.0, dtype);
      PartialGradient partial{other, 2, std::nullopt};
      Tensor back = other;
      if (rotated) {
        partial.rotary = table;
        const Tensor a = other.narrow(3, 0, 3);
        const Tensor b = other.narrow(3, 3, 3);
        const Tensor cos = table.cos.unsqueeze(1);
        const Tensor sin = table.sin.unsqueeze(1);
        back = torch::cat({a * cos + b * sin, b * cos - a * sin}, 3);
      }
      add_partial_gradient(sum.narrow(2, 1, 3), own, partial);
      Tensor expected = own.clone();
      expected.narrow(1, 2, 3).add_(back);
      testing::expect_close(
          sum.narrow(2, 1, 3), expected, testing::tolerance(dtype), "sum");
      EXPECT_TRUE((sum.select(2, 0) == 9).all().item<bool>());
      EXPECT_TRUE((sum.select(2, 4) == 9).all().item<bool>());
    }
  }
}

TEST(AddPartialGradient, RoundsWhatIsAlone) {
  const Tensor own = torch::randn({1, 2, 1, 4});
  const Tensor sum = torch::empty({1, 2, 1, 4}, torch::kBFloat16);
  add_partial_gradient(sum, own, {});
  EXPECT_TRUE(torch::equal(sum, own.to(torch::kBFloat16)));
}

}  // namespace
}  // namespace brigade
