// Flat gradient memory cut into the groups that an optimizer steps: neighbours
// with the same weight decay form one.
#pragma once

#include <functional>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

struct OptimizerGroups {
  std::vector<OptimizerGroup> groups;
  // Where what this rank owns of each parameter lies, in the sync's order.
  struct Place {
    size_t group = 0;
    int64_t offset_numel = 0;  // of the group's memory
    int64_t begin = 0;         // first owned element of the parameter
    int64_t numel = 0;         // owned elements; all of them without sharding
  };
  std::vector<Place> places;
};

// The weight decay of a parameter.
using DecayRule = std::function<double(const Param& param)>;

// `sync` hands over main_grad (GradHandover::kMainGrad). Together the groups
// cover what this rank owns, padding included. Valid until
// sync.layout_version() changes.
OptimizerGroups make_optimizer_groups(
    const GradSync& sync,
    const DecayRule& weight_decay);

}  // namespace brigade
