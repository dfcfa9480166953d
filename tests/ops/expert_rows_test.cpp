#include "brigade/ops/expert_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/kernel_set.h"
#include "tests/support/compare.h"
#include "tests/support/leaf.h"

namespace brigade::ops {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> values_of(const Tensor& tensor) {
  const Tensor flat = tensor.flatten();
  std::vector<int64_t> values;
  for (int64_t i = 0; i < flat.numel(); ++i)
    values.push_back(flat[i].item<int64_t>());
  return values;
}

TEST(ExpertRows, TheLowerIndexIsChosenAmongEqualScores) {
  const Tensor scores =
      torch::tensor({{0., 1., 1., 1., 0., 1.}, {1., 1., 1., 1., 1., 1.}});
  EXPECT_THAT(
      values_of(choose_experts(scores, {.per_token = 3})),
      ElementsAre(1, 2, 3, 0, 1, 2));
}

// The first group has the best expert, the second the best two.
TEST(ExpertRows, OnlyExpertsOfTheBestGroupsAreChosen) {
  const Tensor scores = torch::tensor({{.9, .1, .2, .6, .7, .1}});
  EXPECT_THAT(
      values_of(choose_experts(
          scores, {.per_token = 2, .groups = 2, .chosen_groups = 1})),
      ElementsAre(4, 3));
}

TEST(ExpertRows, OrderIsByExpertThenByToken) {
  const Tensor experts = torch::tensor({{2, 0}, {0, 3}, {2, 3}}, torch::kLong);
  const ExpertOrder order = order_by_expert(experts, {0, 1, 2, 3, 4});
  EXPECT_THAT(order.counts, ElementsAre(2, 0, 2, 2, 0));
  EXPECT_THAT(values_of(order.pair_of_row), ElementsAre(1, 2, 0, 4, 3, 5));
  EXPECT_THAT(values_of(order.row_of_pair), ElementsAre(2, 0, 1, 4, 3, 5));
  EXPECT_THROW(order_by_expert(experts, {0, 1, 2}), Error);
}

TEST(ExpertRows, ExpertsMayLieInAnyOrder) {
  const Tensor experts = torch::tensor({{2, 0}, {0, 3}, {2, 3}}, torch::kLong);
  const ExpertOrder order = order_by_expert(experts, {3, 1, 0, 2});
  EXPECT_THAT(order.counts, ElementsAre(2, 0, 2, 2));
  EXPECT_THAT(values_of(order.pair_of_row), ElementsAre(3, 5, 1, 2, 0, 4));
  EXPECT_THAT(values_of(order.row_of_pair), ElementsAre(4, 2, 3, 0, 5, 1));
}

// Against a loop over pairs, without permutation, differentiated by torch.
TEST(ExpertRows, RowsAndTheirSumsAreThoseOfALoopOverPairs) {
  torch::manual_seed(3);
  constexpr int64_t kTokens = 7;
  constexpr int64_t kWidth = 3;
  for (const int64_t tokens : {kTokens, int64_t{1}, int64_t{0}}) {
    const Tensor experts =
        choose_experts(torch::randn({tokens, 5}), {.per_token = 3});
    const Tensor factors = torch::randn({5, kWidth}, torch::kDouble);
    const Tensor x =
        testing::leaf(torch::randn({tokens, kWidth}, torch::kDouble));
    const Tensor weights =
        testing::leaf(torch::randn({tokens, 3}, torch::kDouble));
    const Tensor dout = torch::randn({tokens, kWidth}, torch::kDouble);

    const ExpertOrder order = order_by_expert(experts, {4, 2, 0, 1, 3});
    const Tensor of_row = experts.flatten().index_select(0, order.pair_of_row);
    const Tensor rows =
        rows_of_tokens(x, order) * factors.index_select(0, of_row);
    const Tensor out = combine_rows(rows, weights, order);
    out.backward(dout);

    const Tensor x2 = testing::leaf(x.detach());
    const Tensor weights2 = testing::leaf(weights.detach());
    Tensor expected = torch::zeros({tokens, kWidth}, torch::kDouble);
    for (int64_t choice = 0; choice < 3; ++choice)
      expected =
          expected + x2 * factors.index_select(0, experts.select(1, choice)) *
                         weights2.narrow(1, choice, 1);
    expected.backward(dout);
    EXPECT_TRUE(torch::allclose(out, expected));
    EXPECT_TRUE(torch::allclose(x.grad(), x2.grad()));
    EXPECT_TRUE(torch::allclose(weights.grad(), weights2.grad()));
  }
}

// Two sequences of four tokens; each expert takes two tokens of each sequence.
TEST(ExpertRows, ACapacityKeepsTheFirstTokensOfASequence) {
  const Tensor experts =
      torch::tensor(
          {{0, 1}, {1, 0}, {1, 2}, {0, 1}, {2, 1}, {2, 0}, {0, 2}, {1, 0}},
          torch::kLong)
          .view({2, 4, 2});
  EXPECT_THAT(
      values_of(within_capacity(experts, 3, 2).to(torch::kLong)),
      ElementsAre(1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 0));
  EXPECT_TRUE(within_capacity(experts, 3, 4).all().item<bool>());
  EXPECT_EQ(within_capacity(experts.narrow(1, 0, 0), 3, 1).numel(), 0);
  EXPECT_THROW(within_capacity(experts, 3, 0), Error);
}

// The loop gives them zero weights.
TEST(ExpertRows, PairsThatAreNotKeptHaveNoRowAndNoGradient) {
  torch::manual_seed(5);
  constexpr int64_t kTokens = 12;
  const Tensor experts =
      choose_experts(torch::randn({kTokens, 5}), {.per_token = 3});
  const Tensor is_kept = within_capacity(experts.unsqueeze(0), 5, 4).squeeze(0);
  ASSERT_FALSE(is_kept.all().item<bool>());
  const Tensor factors = torch::randn({5, 3}, torch::kDouble);
  const Tensor x = testing::leaf(torch::randn({kTokens, 3}, torch::kDouble));
  const Tensor weights =
      testing::leaf(torch::randn({kTokens, 3}, torch::kDouble));
  const Tensor dout = torch::randn({kTokens, 3}, torch::kDouble);

  const ExpertOrder order = order_by_expert(experts, {4, 2, 0, 1, 3}, is_kept);
  EXPECT_EQ(order.pair_of_row.numel(), is_kept.sum().item<int64_t>());
  const Tensor of_row = experts.flatten().index_select(0, order.pair_of_row);
  EXPECT_THAT(order.counts, ::testing::Each(::testing::Le(4)));
  const Tensor out = combine_rows(
      rows_of_tokens(x, order) * factors.index_select(0, of_row),
      weights,
      order);
  out.backward(dout);

  const Tensor x2 = testing::leaf(x.detach());
  const Tensor weights2 = testing::leaf(weights.detach());
  Tensor expected = torch::zeros({kTokens, 3}, torch::kDouble);
  for (int64_t choice = 0; choice < 3; ++choice)
    expected =
        expected + x2 * factors.index_select(0, experts.select(1, choice)) *
                       (weights2 * is_kept).narrow(1, choice, 1);
  expected.backward(dout);
  EXPECT_TRUE(torch::allclose(out, expected));
  EXPECT_TRUE(torch::allclose(x.grad(), x2.grad()));
  EXPECT_TRUE(torch::allclose(weights.grad(), weights2.grad()));
}

// The rest of a sequence whose first part has filled its experts.
TEST(ExpertRows, NothingIsAddedForATokenWithoutRoom) {
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    const Tensor x = testing::leaf(torch::randn({3, 4}).to(dtype));
    const Tensor weights = testing::leaf(torch::randn({3, 2}).to(
        dtype == torch::kDouble ? torch::kDouble : torch::kFloat));
    const ExpertOrder order = order_by_expert(
        torch::tensor({{0, 1}, {1, 0}, {0, 1}}, torch::kLong),
        {1, 0},
        torch::zeros({3, 2}, torch::kBool));
    EXPECT_THAT(order.counts, ElementsAre(0, 0));
    const Tensor out = combine_rows(rows_of_tokens(x, order), weights, order);
    EXPECT_TRUE(out.equal(torch::zeros_like(x)));
    out.backward(torch::ones_like(out));
    EXPECT_TRUE(x.grad().equal(torch::zeros_like(x)));
    EXPECT_TRUE(weights.grad().equal(torch::zeros_like(weights)));
  }
}

// The CPU kernels against ATen's, from the same values; sums of bf16 are
// rounded once in both.
TEST(ExpertRows, CpuKernelsAgreeWithAtens) {
  torch::manual_seed(4);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    for (const int64_t columns : {1, 37, 640}) {
      const ExpertOrder order = order_by_expert(
          choose_experts(torch::randn({33, 5}), {.per_token = 3}),
          {0, 1, 2, 3, 4});
      const Tensor x = torch::randn({33, columns}).to(dtype);
      // Columns of a wider matrix.
      const Tensor rows =
          torch::randn({99, columns + 3}).to(dtype).narrow(1, 1, columns);
      const Tensor weights = torch::rand({33, 3});
      const Tensor one_row = x.narrow(0, 0, 1).expand({33, columns});
      for (const Tensor& of : {Tensor(), weights}) {
        for (const Tensor& from : {x, one_row})
          EXPECT_TRUE(torch::equal(
              cpu_kernels().rows_of_pairs(from, order, of),
              aten_kernels().rows_of_pairs(from, order, of)));
        testing::expect_close(
            cpu_kernels().sum_of_pairs(rows, order, of),
            aten_kernels().sum_of_pairs(rows, order, of),
            dtype == torch::kFloat ? 1e-6 : 4e-3,
            "sum");
      }
      for (const Tensor& dout : {x, one_row})
        testing::expect_close(
            cpu_kernels().products_of_pairs(rows, dout, order),
            aten_kernels().products_of_pairs(rows, dout, order),
            1e-5,
            "products");
    }
  }
}

TEST(ExpertRows, AnAttachedLossGetsAGradientOfOneOnce) {
  const Tensor x = testing::leaf(torch::ones({2}));
  const Tensor other = testing::leaf(torch::full({}, 3.));
  const Tensor y = attach_loss(x, other.square());
  EXPECT_TRUE(torch::equal(y, x));
  (y * 5).sum().backward();
  EXPECT_EQ(x.grad()[0].item<double>(), 5);
  EXPECT_EQ(other.grad().item<double>(), 6);
}

}  // namespace
}  // namespace brigade::ops
