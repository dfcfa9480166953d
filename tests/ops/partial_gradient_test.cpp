#include <gtest/gtest.h>

#include "brigade/ops/attention.h"

namespace brigade::ops {
namespace {

TEST(AddPartialGradient, AddsWhatIsRotatedBackAndRoundsOnce) {
  torch::manual_seed(3);
  const RotaryTable table =
      make_rotary_table(torch::arange(2, 5, torch::kLong), 6, 100.0);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    for (const auto& [rotated, kernels] :
         {std::pair{false, Kernels::kAuto},
          std::pair{true, Kernels::kAuto},
          std::pair{true, Kernels::kAten}}) {
      const Tensor own = torch::randn({2, 3, 3, 6}).to(dtype);
      const Tensor other = torch::randn({2, 3, 3, 6}).to(dtype);
      // A slice of more tokens and of a wider row, as gradients lie.
      const Tensor all = torch::full({2, 7, 5, 6}, 9.0, dtype);
      const Tensor sum = all.narrow(1, 2, 3).narrow(2, 1, 3);
      sum.copy_(own);
      add_partial_gradient(
          sum, other, rotated ? std::optional(table) : std::nullopt, kernels);
      Tensor back = other.to(torch::kDouble);
      if (rotated) {
        const Tensor a = back.narrow(3, 0, 3);
        const Tensor b = back.narrow(3, 3, 3);
        const Tensor cos = table.cos.unsqueeze(1);
        const Tensor sin = table.sin.unsqueeze(1);
        back = torch::cat({a * cos + b * sin, b * cos - a * sin}, 3);
      }
      const double limit = dtype == torch::kBFloat16 ? 1.0 / 256 : 1e-6;
      EXPECT_TRUE(torch::allclose(
          sum.to(torch::kDouble),
          own.to(torch::kDouble) + back,
          limit,
          /*atol=*/1e-6));
      Tensor rest = all.clone();
      rest.narrow(1, 2, 3).narrow(2, 1, 3).fill_(9.0);
      EXPECT_TRUE((rest == 9).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace brigade::ops
