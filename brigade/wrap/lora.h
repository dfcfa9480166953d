// Low-rank adapters (options/adapter.h) for the linears of any module of
// libtorch:
//
//   auto lora = brigade::add_lora(*net, {.rank = 8, .targets = {"fc1"}});
//   torch::optim::AdamW optimizer(lora.parameters(), 1e-4);
//   for (...) {
//     lora.apply();
//     loss(net->forward(x)).backward();
//     optimizer.step();
//   }
//
// All parameters that the module had are frozen; A and B are parameters of the
// linear under PEFT's names, "fc1.lora_A.weight" and "fc1.lora_B.weight", so
// that torch::save() and DataParallel find them. The linear's weight stays a
// parameter under its name.
//
// libtorch's linears have no hook before forward: apply() replaces the weight
// that forward reads by W + scale * B A. Until the next forward that takes the
// memory of the weight once more, and in backward its gradient as much; only B
// and A keep their gradients. Brigade's own models do without both
// (ops/low_rank.h).
//
// DataParallel::forward() calls apply() itself, once the weights that it reads
// are there: gathered (GatherMode::kOverlapForward, Sharding::kParameters) or,
// with mixed precision, 16-bit copies. Each of its forwards makes the adapted
// weights anew, also in evaluation; merge() or the module's own forward avoids
// that. With kParameters each rank then has all adapted weights until the next
// forward. For a forward of the module itself, and for merge(), a sharded
// module's weights are whole while a FullWeights lives.
//
// Called by the thread that runs forward.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "brigade/ops/linear.h"
#include "brigade/options/adapter.h"

namespace brigade {

class Lora {
 public:
  // Called before each forward that a backward follows, which frees the graph
  // of the weights, and before others once A or B have changed. With mixed
  // precision also before a forward of the module itself: DataParallel's leaves
  // 16-bit weights. If gradients are switched off, the weights are computed
  // without a graph.
  void apply() const;
  // Merges the adapters into the weights permanently: into the parameter and
  // the tensor that forward reads. A and B stay parameters, with B zero and
  // magnitudes the norms of the weight's rows.
  void merge();

  // The parameters that train: every A and B, and magnitudes.
  std::vector<torch::Tensor> parameters() const;

 private:
  friend Lora lora_of(const torch::nn::Module&);
  struct Adapted {
    std::shared_ptr<torch::nn::LinearImpl> linear;
    torch::Tensor weight;  // of the base
    ops::LowRank adapter;
  };

  std::vector<Adapted> adapted_;
};

// Called before the module is wrapped. Initial values are PEFT's, drawn by
// torch's generator: A uniform in (-1/sqrt(in), 1/sqrt(in)), B zero, magnitudes
// the norms of the weight's rows (use_dora), all of the weight's dtype. Targets
// name linears as in a run's config; "all-linear" means all of them. A linear
// that is registered in several places is a target by any of its names, and has
// one adapter, under the first.
// Throws ConfigError for a rank below 1, dropout, no targets, a target that is
// no linear's, and a module that has adapters already.
Lora add_lora(torch::nn::Module& module, const AdapterOptions& options);

// The adapters that add_lora() gave the linears inside `module`, of which there
// may be none.
Lora lora_of(const torch::nn::Module& module);

}  // namespace brigade
