// Rotary position embedding (Su et al. 2021, "RoFormer"), in Hugging Face's
// half-split convention: element i of the first half of a head is paired with
// element i of the second half (rotate_half), not with its neighbour.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// rope_type "llama3" of Llama 3.1 and later: low frequencies are divided by
// factor, high ones are kept, between them a linear blend.
struct RotaryScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_position_embeddings = 8192.0;
};

// One row per token, float32: cos and sin of position * frequency.
struct RotaryTable {
  Tensor cos;  // [T, D/2]
  Tensor sin;  // [T, D/2]
};

// positions: int64 [T], any values (context parallel's zigzag, a KV cache's
// next token). head_dim is even. Angles are computed in double.
RotaryTable make_rotary_table(
    const Tensor& positions,
    int64_t head_dim,
    double theta,
    const std::optional<RotaryScaling>& scaling = std::nullopt);

// q: [B, T, H, D]; k: [B, T, Hkv, D]; both rotated by the table's row of their
// token. New tensors; differentiable. Heads may lie in a fused q/k/v buffer.
// In a training step give the table to attention() instead: it rotates while
// it loads.
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
