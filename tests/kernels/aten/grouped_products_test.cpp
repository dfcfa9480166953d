// Grouped products against one product at a time, on the CPU, where libtorch
// has them there too.
#include "brigade/kernels/aten/grouped_products.h"

#include <gtest/gtest.h>

#include <vector>

#include "brigade/ops/libtorch_versions.h"
#include "tests/support/compare.h"

namespace brigade::ops {
namespace {

constexpr int64_t kIn = 16;
constexpr int64_t kOut = 24;

// libtorch 2.8 has them on CUDA alone.
bool has_grouped_products() {
  const Tensor rows = torch::zeros({8, 8}, torch::kBFloat16);
  try {
    return grouped_product(
               rows, rows.unsqueeze(0), torch::tensor({8}, torch::kInt))
        .has_value();
  } catch (const c10::Error&) {
    return false;
  }
}

// Experts with these rows, whose weights are `distance` elements apart; those
// without rows are left out, as expert_linear() does.
std::vector<LinearOperands> experts(
    const std::vector<int64_t>& counts,
    int64_t distance) {
  int64_t total = 0;
  for (const int64_t count : counts)
    total += count;
  const auto type = torch::dtype(torch::kBFloat16);
  const Tensor memory =
      torch::randn({static_cast<int64_t>(counts.size()) * distance}).to(type);
  const Tensor x = torch::randn({total, kIn}).to(type);
  const Tensor y = torch::randn({total, kOut}).to(type);
  std::vector<LinearOperands> result;
  int64_t begin = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0)
      result.push_back(
          {x.narrow(0, begin, counts[e]),
           memory.narrow(0, static_cast<int64_t>(e) * distance, kOut * kIn)
               .view({kOut, kIn}),
           y.narrow(0, begin, counts[e])});
    begin += counts[e];
  }
  return result;
}

TEST(GroupedProducts, AreThoseOfEachExpert) {
  if (!has_grouped_products())
    GTEST_SKIP() << "this libtorch has no grouped products";
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {3, 5}, {4, 0, 0, 7, 1}, {2, 0, 9, 0, 0, 3}}) {
    const auto each = experts(counts, 3 * kOut * kIn);
    ASSERT_TRUE(multiply_grouped(each, GroupedSide::kForward));
    for (const LinearOperands& one : each)
      testing::expect_close(
          one.y.to(torch::kDouble),
          at::matmul(
              one.x.to(torch::kDouble), one.weight.to(torch::kDouble).t()),
          4e-3,
          "y");
    std::vector<Tensor> expected;
    for (const LinearOperands& one : each)
      expected.push_back(
          at::matmul(one.y.to(torch::kDouble), one.weight.to(torch::kDouble)));
    ASSERT_TRUE(multiply_grouped(each, GroupedSide::kInputGrads));
    for (size_t i = 0; i < each.size(); ++i)
      testing::expect_close(
          each[i].x.to(torch::kDouble), expected[i], 4e-3, "x");
  }
}

TEST(GroupedProducts, DeclineOperandsThatTheKernelDoesNotTake) {
  if (!has_grouped_products())
    GTEST_SKIP() << "this libtorch has no grouped products";
  auto each = experts({3, 5, 2}, kOut * kIn);
  std::swap(each[1].weight, each[2].weight);
  EXPECT_FALSE(multiply_grouped(each, GroupedSide::kForward));
  each = experts({3, 5, 2}, kOut * kIn);
  each[1].weight = each[1].weight.clone();
  EXPECT_FALSE(multiply_grouped(each, GroupedSide::kForward));
  each = experts({3, 5, 2}, kOut * kIn);
  each[1].x = each[1].x.clone();
  EXPECT_FALSE(multiply_grouped(each, GroupedSide::kForward));
  each = experts({3, 5, 2}, kOut * kIn + 4);  // not at whole packs
  EXPECT_FALSE(multiply_grouped(each, GroupedSide::kForward));
  each = experts({3, 5, 2}, kOut * kIn);
  const Tensor one_row = each[0].x.narrow(0, 0, 1);
  for (LinearOperands& one : each)  // one row in the place of all
    one.x = one_row.expand({one.x.size(0), kIn});
  EXPECT_FALSE(multiply_grouped(each, GroupedSide::kForward));
  std::vector<int64_t> many(1100, 0);  // more groups than the kernel takes
  many.front() = many.at(1) = many.back() = 1;
  EXPECT_FALSE(
      multiply_grouped(experts(many, kOut * kIn), GroupedSide::kForward));
}

}  // namespace
}  // namespace brigade::ops
