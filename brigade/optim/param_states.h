// Notes what an optimizer keeps of each parameter of a sync, in
// ParamSet::set_states(). After the memory's layout_version() has changed they
// are still those of the optimizer, which lie where they did.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// Returns how often each parameter has been stepped; -1 if the optimizer does
// not step it. Collective with sharding. Throws UsageError if it steps other
// memory than the sync's, or not all elements of a parameter that this rank
// owns.
std::vector<int64_t> note_states(GradSync& sync, const Optimizer& optimizer);
// The present states of one of torch::optim's optimizers, of the parameters'
// dtype and under libtorch's names ("exp_avg"); those of tensors that are not
// the sync's are left out. -1: it has not stepped the parameter yet.
// Collective. Throws UsageError for an optimizer that fields_of() does not
// know.
std::vector<int64_t> note_states(
    GradSync& sync,
    const torch::optim::Optimizer& optimizer);

}  // namespace brigade
