// The matrix products of linears: each by what is quickest for its operands.
// Tiles of ours (linear_kernel.h) multiply bf16 with widths that are multiples
// of 32: on AMX all three, forward without a bias and from 32 rows on, with
// AVX512-BF16 the weight's gradient. oneDNN does the rest, and torch what
// oneDNN does not take. All operands but bias are rows; throws Error naming
// them where they do not fit.
#pragma once

#include <torch/types.h>

#include "brigade/kernels/cpu/product.h"

namespace brigade::ops {

using torch::Tensor;

// c [M, N] = or += a [M, K] b [K, N] (+ bias), any dtype and device.
void multiply(
    const Tensor& a,
    const Tensor& b,
    Tensor c,
    Destination destination,
    const Tensor& bias = {});

// y [M, out] = x [M, in] weight^T (+ bias).
void multiply_forward(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& y,
    const Tensor& bias);

// input_grad [M, in] = output_grad [M, out] weight.
void multiply_input(
    const Tensor& output_grad,
    const Tensor& weight,
    const Tensor& input_grad);

// weight_grad [out, in] += output_grad^T x.
void accumulate_weight(
    const Tensor& output_grad,
    const Tensor& x,
    const Tensor& weight_grad);

}  // namespace brigade::ops
