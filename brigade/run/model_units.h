// Which weights of a model part forward reads together: it waits for them
// together, and ZeRO's stage 3 gathers and frees them together.
#pragma once

#include <map>
#include <vector>

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

// The number of each unit (Param::unit): what comes before the layers is one
// unit, each layer one, and what comes after them. joins_tied: the latter and a
// tied embedding are one, as the head reads both; otherwise the head finds the
// embedding as forward's first unit left it, readable.
std::map<ModelUnit, int> divide_into_units(
    const std::vector<ParameterRow>& rows,
    bool joins_tied);

}  // namespace brigade
