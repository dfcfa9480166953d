// Low-rank adapters (LoRA: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large
// Language Models"): a linear y = W x becomes
//
//   y = W x + scale * B (A x)      A [rank, in], B [out, rank]
//
// in which W stays as it is and A and B train.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

// Config keys "adapter".
struct AdapterOptions {
  int64_t rank = 0;  // of A and B; 0: no adapter, the model itself trains
  double alpha = 8;  // scale = alpha / rank
  // scale = alpha / sqrt(rank): rank-stabilised (Kalajdzievski 2023).
  bool use_rslora = false;
  // While training, an adapter reads its linear's input with each element
  // zeroed with this probability, and the others divided by 1 - dropout.
  double dropout = 0;
  // Weight-decomposed (DoRA: Liu et al. 2024): the norms of the rows of
  // W + scale B A are replaced by a vector of magnitudes, which trains too.
  bool use_dora = false;
  // Which linears have one: the ends of their names, from a dot on ("q_proj",
  // "layers.3.mlp.up_proj"), or "all-linear" for those of all layers.
  std::vector<std::string> targets = {"q_proj", "v_proj"};

  bool is_used() const { return rank > 0; }
  double scale() const {
    const auto size = static_cast<double>(rank);
    return alpha / (use_rslora ? std::sqrt(size) : size);
  }
  bool operator==(const AdapterOptions&) const = default;
};

// How the linears with an adapter are named (AdapterOptions::targets).
inline constexpr const char* kAllLinear = "all-linear";

// Whether a target names the linear of that full name: it is the whole name, or
// its end from a dot on.
inline bool is_target(const std::string& target, const std::string& linear) {
  return target == kAllLinear || linear == target ||
         linear.ends_with("." + target);
}

}  // namespace brigade
