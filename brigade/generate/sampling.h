// Choosing the next token.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

struct SamplingOptions {
  double temperature = 1.0;  // 0: the likeliest token
  // Keep the k likeliest, and those as likely as the k-th; 0: all.
  int64_t top_k = 0;
  // Then keep the likeliest tokens that together reach this share.
  double top_p = 1.0;
};

// The probabilities from which a token is drawn: float32 [V] of finite logits
// float32 [V]: temperature, then top_k, then top_p, as transformers and vLLM
// do. Holtzman et al. 2019 for top_p.
torch::Tensor next_token_probabilities(
    const torch::Tensor& logits,
    const SamplingOptions& options);

// Draws by inverse transform: `uniform` in [0, 1).
int64_t draw_token(const torch::Tensor& probabilities, double uniform);

}  // namespace brigade
