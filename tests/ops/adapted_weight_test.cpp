#include "brigade/ops/adapted_weight.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "brigade/ops/row_magnitude.h"

namespace brigade::ops {
namespace {

// By the formula, with roundings of each operation.
TEST(AdaptedWeight, IsTheSumRoundedAsPeftDoes) {
  torch::manual_seed(1);
  const Tensor weight = torch::randn({7, 5});
  const LowRank adapter{
      .a = torch::randn({3, 5}), .b = torch::randn({7, 3}), .scale = 0.3};
  const Tensor delta = torch::matmul(adapter.b, adapter.a) * 0.3;
  EXPECT_TRUE(torch::equal(adapted_weight(weight, adapter), weight + delta));
  EXPECT_TRUE(torch::equal(
      row_squares(weight, adapter), (weight + delta).square().sum(1)));
}

TEST(AdaptedWeight, HasRowsOfTheGivenNorms) {
  torch::manual_seed(2);
  const Tensor weight = torch::randn({7, 5});
  const LowRank adapter{
      .a = torch::randn({3, 5}),
      .b = torch::randn({7, 3}),
      .scale = 2,
      .magnitude = torch::rand({7}) + 1};
  const Tensor found = adapted_weight(weight, adapter);
  EXPECT_TRUE(torch::allclose(found.norm(2, {1}), adapter.magnitude));
  LowRank without = adapter;
  without.magnitude = Tensor();
  const Tensor sum = adapted_weight(weight, without);
  EXPECT_TRUE(torch::allclose(
      torch::cosine_similarity(found, sum, 1), torch::ones({7})));
}

}  // namespace
}  // namespace brigade::ops
