#include "brigade/context_parallel/partial_gradient.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"

namespace brigade {
namespace {

using torch::Tensor;

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
