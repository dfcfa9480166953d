// Optimizers over what this rank owns of a sync's flat memory
// (GradHandover::kMainGrad): torch::optim's and Brigade's.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/adamw.h"
#include "brigade/optim/muon.h"
#include "brigade/optim/schedule_free_adamw.h"
#include "brigade/optim/sgd.h"

namespace brigade {

// What this rank owns of a sync's flat weights, as leaves whose .grad() is the
// owned part of the gradients: for a torch::optim optimizer that steps each
// element by itself (Adam, AdamW, SGD, RMSprop, Adagrad; not LBFGS). Its
// zero_grad() may clear them between steps; between micro-batches, where that
// would not drop all, the next backward() throws ConfigError. One per bucket.
// The sync hands over main_grad; its weights are float32 or float64. Step them
// by DataParallel::step(). Throws ConfigError otherwise.
std::vector<torch::Tensor> owned_parameters(GradSync& sync);

// The same for parameter groups: those that one would give to the optimizer of
// a module that is not wrapped. Each comes back with its options, and with what
// this rank owns of its parameters instead of them, which may be nothing. As in
// torch::optim, parameters in no group are not stepped. What the sync does not
// know (frozen, or in WrapOptions::ignore) stays in its group as it is. Throws
// ConfigError naming a parameter that is in two groups.
std::vector<torch::optim::OptimizerParamGroup> owned_parameters(
    GradSync& sync,
    std::vector<torch::optim::OptimizerParamGroup> groups);

// Brigade's AdamW over what this rank owns of a sync's flat buffers
// (GradHandover::kMainGrad), one group per bucket. Make it anew where
// sync.layout_version() has changed (BucketOrder::kObserved, after the first
// step): the old one's step() throws.
AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options = {});

// Parameters that an optimizer steps alike, with a learning rate for each of
// these (Optimizer::step()).
struct SteppedParams {
  std::vector<torch::Tensor> params;
  double weight_decay = 0.0;
  // kMatrices: by Muon, each whole.
  StepUnit unit = StepUnit::kElements;
};
// The name of SteppedParams from when there was AdamW alone.
using AdamWParams = SteppedParams;
// The same for parameter groups. Parameters in none are not stepped, nor are
// frozen ones. Throws ConfigError naming a parameter that is in two groups, or
// one that is not the sync's.
AdamW make_adamw(
    const GradSync& sync,
    const std::vector<AdamWParams>& groups,
    const AdamWOptions& options = {});

// The other optimizers over the same memory, whatever the sharding. Collective.
// Muon throws ConfigError where no group has matrices, or one has something
// else.
Muon make_muon(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const Muon::Options& options = {});
// The same of SGD.
Sgd make_sgd(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const SgdOptions& options = {});
// The same of schedule-free AdamW.
ScheduleFreeAdamW make_schedule_free_adamw(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const ScheduleFreeAdamW::Options& options = {});

// See DataParallel::step().
void step_owned(GradSync& sync, torch::optim::Optimizer& optimizer);

}  // namespace brigade
