// Which parameters of a module are gathered together: see
// Sharding::kParameters.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "brigade/data_parallel/wrapped_params.h"

namespace brigade {

// Full names of the submodules that are units when none are named: the children
// of each outermost Sequential and ModuleList.
std::vector<std::string> default_units(const torch::nn::Module& module);

// Numbers the units: those named, in the order of their first parameter, and
// one of all parameters outside of them. A parameter of several (tied weights,
// a unit in another) belongs to the one named first. Throws ConfigError where
// `module` has no submodule of a name.
void assign_units(
    const torch::nn::Module& module,
    const std::vector<std::string>& units,
    std::vector<Param>& params);

}  // namespace brigade
