// Linears with weight-decomposed adapters (DoRA: Liu et al. 2024, "DoRA:
// Weight-Decomposed Low-Rank Adaptation"): each row of the adapted weight has
// the norm that a vector of magnitudes m says,
//
//   y = m / n * (W x + scale B A x)      n_i = |row i of W + scale B A|
//
// The norms n are constants in backward, as in section 4.3. With dropout
// (input_dropout.h), which leaves d of x, as PEFT has it:
//
//   y = W (x - d) + m / n * (W d + scale B A d)
//
// The norms take the memory of the weight in float32 for a moment and about
// rank / tokens of the linear's arithmetic, in each forward; where the adapter
// does not train they are computed once (LowRank::kept_squares).
//
// linear_group() calls it; tensor parallel itself where rows are cut.
#pragma once

#include <functional>
#include <vector>

#include "brigade/ops/linear.h"

namespace brigade::ops {

// Whether one of them has magnitudes.
bool has_magnitude(const std::vector<LowRank>& adapters);

// n^2 of this rank's columns: float32 [out], outside autograd.
Tensor row_squares(const Tensor& weight, const LowRank& adapter);

// What compute() returns, n^2 of the whole rows; of an adapter that does not
// train, what it returned the first time.
Tensor squares_of(
    const LowRank& adapter,
    const std::function<Tensor()>& compute);

// output * magnitude / sqrt(squares). output: [.., out]; magnitude: [out]. Of
// output's dtype, computed in float32.
Tensor with_magnitude(
    const Tensor& output,
    const Tensor& magnitude,
    const Tensor& squares,
    WeightGrad weight_grad);

// The two terms of a linear with dropout, before its magnitudes.
// options.adapters are not looked at. on_input_grad must be empty: the gradient
// of x is the sum of two.
struct DroppedTerms {
  Tensor passed_by;  // W (x - d), [.., out]
  Tensor scaled;     // W d + scale B A d, [.., out]: the magnitudes are for it
};
DroppedTerms dropped_terms(
    const Tensor& x,
    const Tensor& weight,
    const LowRank& adapter,
    const LinearOptions& options);

// linear_group() where has_magnitude(options.adapters).
std::vector<Tensor> magnitude_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options);

}  // namespace brigade::ops
