// The sizes of models like GPT-2, which many published runs train.
#pragma once

#include <string>

#include "brigade/planner/model_shape.h"

namespace brigade::bench {

struct GptSizes {
  int layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t vocab = 0;
  int64_t positions = 0;
};

// GPT-2's architecture: LayerNorm, GELU, biases everywhere, learned positions,
// a tied head, dropout with a mask of one byte per element.
inline planner::ModelShape gpt_shape(
    const GptSizes& sizes,
    const std::string& name) {
  return {
      .name = name,
      .layers = sizes.layers,
      .hidden = sizes.hidden,
      .heads = sizes.heads,
      .kv_heads = sizes.heads,
      .head_dim = sizes.hidden / sizes.heads,
      .intermediate = sizes.intermediate,
      .vocab = sizes.vocab,
      .up_matrices = 1,
      .learned_positions = sizes.positions,
      .tied_head = true,
      .qkv_bias = true,
      .o_bias = true,
      .mlp_bias = true,
      .norm_vectors = 2,
      .mask_bytes = 1};
}

}  // namespace brigade::bench
