// How quick the products of experts are, each of which gets few tokens.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

// Floating-point operations per second of the forward of 16 experts' matrices,
// 1024 x 1024, one after the other with `rows` tokens each. The best of several
// runs, as peak_flops().
double expert_flops(const torch::TensorOptions& options, int64_t rows);

}  // namespace brigade
