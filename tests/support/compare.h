// How far a tensor is from its oracle.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>

namespace brigade::testing {

// The norm of the difference, in units of the oracle's norm.
inline double relative_error(
    const torch::Tensor& actual,
    const torch::Tensor& expected) {
  const auto wide = expected.to(torch::kDouble);
  return (actual.to(torch::kDouble) - wide).norm().item<double>() /
         std::max(wide.norm().item<double>(), 1e-12);
}

// fp32 reduced in another order, and bf16 rounded at other places.
inline double tolerance(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 ? 2e-2 : 1e-5;
}

inline void expect_close(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    double tolerance,
    const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0)
    return;
  EXPECT_LE(relative_error(actual, expected), tolerance) << what;
}

}  // namespace brigade::testing
