// The arithmetic of linears with low-rank adapters (low_rank.h) on rows,
// outside autograd: the adapters' products and all their gradients. Private to
// brigade/ops.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "brigade/ops/input_dropout.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/linear_products.h"

namespace brigade::ops {

inline constexpr const char* kLowRankOp = "low_rank_linear";

// What dropout leaves of the input, and of its gradient, for each adapter.
struct LowRankDropped {
  InputDropout dropout;
  Kernels kernels;
  std::vector<uint64_t> keys;  // of each adapter

  bool is_used() const { return dropout.is_used(); }
  void drop(const Tensor& rows, size_t adapter) const {
    drop_elements(rows, dropout, keys[adapter], kernels);
  }
  // The rows themselves without dropout.
  Tensor left_of(const Tensor& rows, size_t adapter) const {
    if (!is_used())
      return rows;
    Tensor left = rows.clone(at::MemoryFormat::Contiguous);
    drop(left, adapter);
    return left;
  }
};

struct LowRankSaved {
  LinearOptions options;
  const KernelSet* kernels;
  // The index of each adapter's weight, and its scale.
  std::vector<size_t> adapted;
  std::vector<double> scales;
  LowRankDropped dropped;
  size_t weights;
  std::vector<Tensor> biases;  // as many, undefined ones too; of forward
  std::vector<int64_t> x_sizes;
  bool x_has_gradient;
};

// What forward keeps.
struct LowRankKept {
  std::vector<Tensor> weights;
  std::vector<Tensor> a, b, h;
  std::vector<Tensor> input;  // x, or what it is made of
};
// The gradients from which those of a and of b are made.
struct LowRankParts {
  OutputGrads a;                // of each h, times the scale
  std::vector<Tensor> outputs;  // of each b
};

// One h for each adapter, [rows, rank].
std::vector<Tensor> scaled_products(
    const Tensor& x,
    const std::vector<Tensor>& a,
    const LowRankSaved& saved);

// tensors: the weights, each a, b and h, then x or what it is made of.
LowRankKept split_low_rank(
    const std::vector<Tensor>& tensors,
    const LowRankSaved& saved);

LowRankParts low_rank_parts(
    const OutputGrads& outputs,
    const LowRankKept& kept,
    const LowRankSaved& saved);

// Adds what the adapters' terms give x's rows.
void add_low_rank_input_grads(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved,
    Tensor dx);

// Adds the gradients of each a and b to their main_grads, now or where
// LinearOptions::defer_weight_grad says.
void accumulate_low_rank(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved);

// Puts them into the node's results.
void return_low_rank(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved,
    std::vector<Tensor>& result);

}  // namespace brigade::ops
