// What an optimizer keeps of a model's parameters, by the table of parameters.
//
// Core layer: no libtorch.
#pragma once

#include <cstdint>

#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/optimizer.h"
#include "brigade/options/optimizer_states.h"

namespace brigade {

// How the optimizer steps a row's parameter.
StepUnit step_unit(const ParameterRow& row, const OptimizerOptions& options);

// Bytes of the states of `numel` elements of a row's parameter.
int64_t state_bytes(
    const ParameterRow& row,
    int64_t numel,
    const OptimizerOptions& options,
    WeightWidth weight);

}  // namespace brigade
