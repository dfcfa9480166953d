// Choosing the next token.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the likeliest token
  int64_t top_k = 0;         // keep the k likeliest; 0: all
  double top_p = 1.0;        // keep the likeliest that together reach p
};

// The probabilities from which a token is drawn: float32 [V] of logits float32
// [V]. Holtzman et al. 2019 for top_p.
torch::Tensor next_token_probabilities(
    const torch::Tensor& logits,
    const SamplingOptions& options);

// Draws by inverse transform: `uniform` in [0, 1).
int64_t draw_token(const torch::Tensor& probabilities, double uniform);

}  // namespace brigade
