// The state of an optimizer, whole and by parameter, whatever each rank holds
// of it: what ZeroRedundancyOptimizer.consolidate_state_dict() and FSDP's full
// optimizer state are in PyTorch.
//
//   auto state = gather_optimizer_state(model.sync(), optimizer);
//   if (world.rank() == 0)
//     torch::save(state, "optimizer.pt");
//   ...
//   brigade::OptimizerState state;  // on every rank
//   torch::load(state, "optimizer.pt");
//   load_optimizer_state(model.sync(), optimizer, state);
//
// A state does not depend on ranks, sharding, hand-over, buckets or parameter
// groups: it is loaded under any other. It has no options (learning rates):
// those are the constructor's, as with libtorch's own files.
//
// torch::optim's SGD, Adam, AdamW, RMSprop and Adagrad, over owned_parameters()
// or over a module's parameters, and Brigade's optimizers. The two AdamW take
// each other's state.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

struct OptimizerState {
  // Of each parameter by name, of each field by libtorch's name for it
  // ("exp_avg", "momentum_buffer"): shaped as the parameter; "step": an int64
  // scalar. "master_low" is what a bf16 weight lacks of its master. What was
  // never stepped is not there.
  std::map<std::string, std::map<std::string, torch::Tensor>> of_param;
  // Of all parameters: Optimizer::scalars().
  std::map<std::string, double> scalars = {};
};

// For torch::save() and torch::load().
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const OptimizerState& state);
// For torch::load().
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive,
    OptimizerState& state);

// Collective, between steps: the whole state on rank `to` (of parameters that
// it has itself, where groups have others), an empty one on the others. Costs
// an all-gather per field and bucket with sharding. Throws ConfigError for
// another optimizer, and for one with state of a tensor that is not
// synchronised (WrapOptions::ignore).
OptimizerState gather_optimizer_state(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer,
    int to = 0);
OptimizerState gather_optimizer_state(
    const GradSync& sync,
    const Optimizer& optimizer,
    int to = 0);

// Collective, with the same state on every rank: the optimizer's becomes that.
// Load weights first, before wrapping or while a FullWeights lives: weights
// that are replaced later make masters anew. Throws DataError naming the
// parameter where the state is of another module or optimizer, and, on every
// rank, where one run of memory on any rank would need several step counts.
void load_optimizer_state(
    const GradSync& sync,
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state);
void load_optimizer_state(
    const GradSync& sync,
    Optimizer& optimizer,
    const OptimizerState& state);

}  // namespace brigade
