#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace brigade {

// Float32 values that depend on element and seed only, so they are the same on
// every rank.
inline torch::Tensor pseudo_random(torch::IntArrayRef sizes, int64_t seed) {
  const auto numel = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(numel, torch::kFloat) * 1.7 + seed)
      .view(sizes);
}

// Fills each parameter with such values, from seed `seed` + 1 on. The global
// generator would not do, since ranks may be threads.
inline void fill_params(const torch::nn::Module& module, int64_t seed = 0) {
  const torch::NoGradGuard no_grad;
  for (auto& param : module.parameters())
    param.copy_(pseudo_random(param.sizes(), ++seed));
}

}  // namespace brigade
