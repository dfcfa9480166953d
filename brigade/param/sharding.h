// The tensors of which each rank of a data parallel group keeps only its part:
// the stages of ZeRO, ZeRO-1 to ZeRO-3 (Rajbhandari et al. 2020,
// arXiv:1910.02054); ZeRO-3 is FSDP.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// Numbered as ZeRO's stages. Bytes per bf16 parameter on each of dp ranks:
// weight + main_grad + moments and master.
enum class Sharding {
  kNone = 0,   // 2 + 4 + 10: everything on every rank
  kOptimizer,  // 2 + 4 + 10/dp: moments and masters (ZeRO-1)
  kGradients,  // 2 + 14/dp, and the buckets under way: gradients too (ZeRO-2)
  // 16/dp, the buckets under way and the weights of two units: weights too
  // (ZeRO-3; PyTorch's fully_shard). See sharding/sharded_weights.h.
  kParameters,
};
// The names in messages.
template <>
inline constexpr std::array kChoices<Sharding>{
    Choice{Sharding::kNone, "none"},
    Choice{Sharding::kOptimizer, "optimizer"},
    Choice{Sharding::kGradients, "gradients"},
    Choice{Sharding::kParameters, "parameters"}};

// With sharding: when gather_weights(), and with it DataParallel::step(),
// returns.
enum class GatherMode {
  kInPlace,  // with the weights of all ranks in place
  // At once; operations of the next DataParallel::forward() wait for the
  // weights that they read. Until then, or GatheredWeights::need_all(), code
  // that reads the module through another handle finds some weights of the step
  // before.
  kOverlapForward,
};

// Whether a rank keeps only the gradients of its own range.
constexpr bool divides_gradients(Sharding sharding) {
  return sharding == Sharding::kGradients || sharding == Sharding::kParameters;
}

}  // namespace brigade
