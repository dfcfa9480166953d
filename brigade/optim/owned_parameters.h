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

// The part of a sync's flat weights that this rank owns, as leaves whose
// .grad() is the owned part of the gradients, one per bucket: for a
// torch::optim optimizer that steps each element by itself (Adam, AdamW, SGD,
// RMSprop, Adagrad; not LBFGS). Its zero_grad() may clear them between steps;
// if it does so between micro-batches, where that would not drop all, the next
// backward() throws UsageError. Step them by DataParallel::step(). Throws
// UsageError unless the sync hands over main_grad and its weights are float32
// or float64.
std::vector<torch::Tensor> owned_parameters(GradSync& sync);

// The same for parameter groups as one would pass them to the optimizer of a
// module that is not wrapped. Each is returned with its options, and with this
// rank's part of its parameters, which may be empty, in their place. As in
// torch::optim, parameters in no group are not stepped. Tensors that the sync
// does not know (frozen, or in WrapOptions::ignore) stay in their group as they
// are. Throws UsageError naming a parameter that is in two groups.
std::vector<torch::optim::OptimizerParamGroup> owned_parameters(
    GradSync& sync,
    std::vector<torch::optim::OptimizerParamGroup> groups);

// Brigade's AdamW over this rank's part of a sync's flat buffers
// (GradHandover::kMainGrad), one group per bucket. Make a new one once
// sync.memory().layout_version() has changed (BucketOrder::kObserved, after the
// first step): the old one's step() throws. Throws UsageError unless the sync
// hands over main_grad.
AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options = {});

// Parameters that an optimizer steps by the same rule, a parameter group; each
// group has its own learning rate (Optimizer::step()).
struct SteppedParams {
  std::vector<torch::Tensor> params;
  double weight_decay = 0.0;
  // With kMatrices Muon steps each parameter as a whole matrix.
  StepUnit unit = StepUnit::kElements;
};
// The earlier name of SteppedParams, from when AdamW was the only optimizer.
using AdamWParams = SteppedParams;
// The same for parameter groups. Frozen parameters and those in no group are
// not stepped. Throws UsageError naming a parameter that is in two groups, or
// one that is not the sync's.
AdamW make_adamw(
    const GradSync& sync,
    const std::vector<AdamWParams>& groups,
    const AdamWOptions& options = {});

// Muon over the same memory, whatever the sharding. Collective. Throws
// UsageError as above, if no group has matrices, if one has something else, and
// with uneven inputs.
Muon make_muon(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const Muon::Options& options = {});
// The same as make_adamw() for SGD.
Sgd make_sgd(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const SgdOptions& options = {});
// The same as make_adamw() for schedule-free AdamW.
ScheduleFreeAdamW make_schedule_free_adamw(
    const GradSync& sync,
    const std::vector<SteppedParams>& groups,
    const ScheduleFreeAdamW::Options& options = {});

// See DataParallel::step().
void step_owned(GradSync& sync, torch::optim::Optimizer& optimizer);

}  // namespace brigade
