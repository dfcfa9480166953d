// Which weights of a model part forward reads together: it waits for them
// together, and ZeRO's stage 3 gathers and frees them together.
#pragma once

#include <map>
#include <vector>

#include "brigade/model_spec/model_part.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

// The number of each unit (Param::unit): what comes before the layers of `part`
// is one unit, each layer one, and what comes after them. A tied embedding is
// in the head's unit, which reads it, where forward's first unit has not left
// it readable: in ZeRO's stage 3, and on a last stage that has only a copy.
std::map<ModelUnit, int> divide_into_units(
    const std::vector<ParameterRow>& rows,
    const ModelPart& part,
    int zero_stage);

}  // namespace brigade
