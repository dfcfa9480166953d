// The whole state of an optimizer by parameter, whatever part each rank holds,
// as ZeroRedundancyOptimizer.consolidate_state_dict() and the full optimizer
// state of FSDP are in PyTorch.
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
// groups, and can be loaded under any others. It has no options (learning
// rates): those are the constructor's, as with libtorch's own files.
//
// The optimizer may be torch::optim's SGD, Adam, AdamW, RMSprop or Adagrad,
// over owned_parameters() or over a module's parameters, or one of Brigade's.
// The two AdamW take each other's state.
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
  // The fields of each parameter, by its name and by libtorch's name for the
  // field ("exp_avg", "momentum_buffer"): shaped as the parameter; "step": an
  // int64 scalar. "master_low" is what a bf16 weight lacks of its master.
  // Parameters that were never stepped are left out.
  std::map<std::string, std::map<std::string, torch::Tensor>> of_param;
  // Optimizer::scalars(), which belong to all parameters.
  std::map<std::string, double> scalars = {};
};

// Called by torch::save().
torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive,
    const OptimizerState& state);
// Called by torch::load().
torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive,
    OptimizerState& state);

// Collective, between steps. Returns the whole state on rank `to` (only of
// parameters that it has itself, if groups differ) and an empty one on the
// others. With sharding it costs an all-gather per field and bucket. Throws
// UsageError for another optimizer, and for one with state of a tensor that is
// not synchronised (WrapOptions::ignore).
OptimizerState gather_optimizer_state(
    GradSync& sync,
    const torch::optim::Optimizer& optimizer,
    int to = 0);
// The same for one of Brigade's.
OptimizerState
gather_optimizer_state(GradSync& sync, const Optimizer& optimizer, int to = 0);

// Collective. `state`, the same on every rank, becomes the optimizer's. Load
// weights first, before wrapping or while a FullWeights lives: replacing
// weights later resets the masters. Throws DataError naming the parameter if
// the state is of another module or optimizer, and, on every rank, if one run
// of memory on any rank would need several step counts; UsageError for an
// optimizer that is none of those above.
void load_optimizer_state(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    const OptimizerState& state);
void load_optimizer_state(
    GradSync& sync,
    Optimizer& optimizer,
    const OptimizerState& state);

}  // namespace brigade
