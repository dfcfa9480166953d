// The products of several linears on one input, one product where their weights
// are adjacent in memory (WeightGroup::kOneMatrix), outside autograd. Private
// to brigade/ops.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {

// Throws UsageError naming `op` unless they fit: x [.., in], weight [out, in],
// bias [out] or undefined.
void check_linear(
    std::string_view op,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias);

// `sizes` with another last one.
std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last);

// The weights as the one matrix that they were declared to be, if they are.
std::optional<SideBySide> as_one_matrix(
    const std::vector<Tensor>& weights,
    WeightGroup group);

// The input x that forward kept, or that input.make() computes from `kept`.
Tensor input_of(const std::vector<Tensor>& kept, const RemadeInput& input);

// x: [.., in]; weights[i]: [out_i, in]; biases[i]: [out_i] or undefined.
// Returns [.., out_i] each.
std::vector<Tensor> run_linear(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    WeightGroup group,
    const KernelSet& kernels);

// What backward works with: gradients as rows, and as one matrix where both
// they and the weights lie side by side in the same order.
struct OutputGrads {
  std::vector<Tensor> rows;  // [M, out_i]
  std::optional<SideBySide> whole;
  Tensor weights;  // [sum of out, in], where there is a whole
};

// gradients[i]: [.., out_i] or undefined, zeros.
OutputGrads output_grads(
    const std::vector<Tensor>& gradients,
    const std::vector<Tensor>& weights,
    WeightGroup group,
    int64_t rows);

// The gradient of x, of x_sizes.
Tensor input_grad(
    const OutputGrads& gradients,
    const std::vector<Tensor>& weights,
    at::IntArrayRef x_sizes,
    const KernelSet& kernels);

// The same into dx [rows, in], in the wide dtype and rounded once: of weights
// that no one product multiplies.
void sum_input_grads(
    Tensor dx,
    const OutputGrads& gradients,
    const std::vector<Tensor>& weights,
    const KernelSet& kernels);

// Adds the gradient of each weight that has one to its main_grad, in one
// product where the main_grads lie as the gradients do. `op` names it in
// errors.
void accumulate_weights(
    const OutputGrads& gradients,
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    std::string_view op,
    const KernelSet& kernels);

}  // namespace brigade::ops
