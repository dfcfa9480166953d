// Rotary position embedding (Su et al. 2021, "RoFormer"), in Hugging Face's
// half-split convention: element i of the first half of a head is paired with
// element i of the second half (rotate_half), not with its neighbour.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// One row per token, float32: cos and sin of position * frequency, times a
// magnitude (1, but for YaRN).
struct RotaryTable {
  Tensor cos;  // [T, D/2]
  Tensor sin;  // [T, D/2]
};

// positions: int64 [T], any values (context parallel's zigzag, a KV cache's
// next token). Angles are computed in double.
RotaryTable make_rotary_table(
    const Tensor& positions,
    const std::vector<double>& frequencies,
    double magnitude = 1.0);
// With frequencies theta ** (-2i / head_dim); head_dim is even.
RotaryTable
make_rotary_table(const Tensor& positions, int64_t head_dim, double theta);

// q: [B, T, H, D]; k: [B, T, Hkv, D]; both rotated by the table's row of their
// token. New tensors; differentiable. Heads may lie in a fused q/k/v buffer. A
// training step gives the table to attention() instead, which rotates while it
// loads.
std::pair<Tensor, Tensor> rotary(
    const Tensor& q,
    const Tensor& k,
    const RotaryTable& table,
    Kernels kernels = Kernels::kAuto);

// y = x rotated, or x itself without a table, outside autograd. y: of x's shape
// and dtype, with a dense last dim.
void rotate_into(
    Tensor y,
    const Tensor& x,
    const std::optional<RotaryTable>& table,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
