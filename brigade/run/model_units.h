// Which weights of a model part are gathered and freed together in ZeRO's stage
// 3.
#pragma once

#include <map>
#include <vector>

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

// The number of each unit (Param::unit), by what forward reads together: what
// comes before the layers is one unit, each layer one, and what comes after
// them; the latter and a tied embedding are one, since both are read together.
std::map<ModelUnit, int> divide_into_units(
    const std::vector<ParameterRow>& rows);

}  // namespace brigade
