// Which parameters of a module are gathered together (the units of FSDP): see
// Sharding::kParameters.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "brigade/param/param.h"

namespace brigade {

// Full names of the submodules that are units when none are named: the children
// of each outermost Sequential and ModuleList.
std::vector<std::string> default_units(const torch::nn::Module& module);

// Numbers the units: the named ones, in the order of their first parameters,
// and one of all parameters outside of them. A parameter of several units (tied
// weights, a unit in another) belongs to the one named first. Throws
// UsageError if `module` has no submodule of a name.
void assign_units(
    const torch::nn::Module& module,
    const std::vector<std::string>& units,
    std::vector<Param>& params);

}  // namespace brigade
