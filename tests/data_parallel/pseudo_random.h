#pragma once

#include <torch/types.h>

namespace brigade {

// Float32 values that differ from element to element and from seed to seed, the
// same on every rank.
inline torch::Tensor pseudo_random(torch::IntArrayRef sizes, int64_t seed) {
  const auto numel = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(numel, torch::kFloat) * 1.7 + seed)
      .view(sizes);
}

}  // namespace brigade
