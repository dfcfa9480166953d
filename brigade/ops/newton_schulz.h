// The orthogonal factor of a matrix, approximately: all its singular values
// become about 1 (Jordan et al. 2024, "Muon: An optimizer for hidden layers in
// neural networks"). The arithmetic of torch.optim.Muon:
//
//   X = matrix / max(|matrix|, eps), transposed where it has more rows
//   G = X X^T;  X = a X + (b G + c G G) X, `steps` times
//
// G and G G are symmetric: on a CPU little more than their lower halves is
// multiplied. Singular values between 0.01 and 1 of the norm come to lie
// between 0.68 and 1.2; smaller ones stay smaller.
#pragma once

#include <torch/types.h>

#include "brigade/options/muon.h"

namespace brigade::ops {

using torch::Tensor;

// matrix: [A, B], float32, contiguous. Returns a float32 tensor of its shape;
// in bf16 its values are those of bf16. A matrix of zeros gives zeros.
Tensor newton_schulz(
    const Tensor& matrix,
    const NewtonSchulzOptions& options = {});

// Multiplications and additions that one call needs, where symmetric products
// count half: steps (3 r^2 s + r^3) for sides r <= s.
double newton_schulz_flops(
    int64_t rows,
    int64_t columns,
    const NewtonSchulzOptions& options = {});

}  // namespace brigade::ops
