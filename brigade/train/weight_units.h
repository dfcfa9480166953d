// Which weights of a model part are gathered and freed together in ZeRO's stage
// 3, and which of them each step of forward reads.
#pragma once

#include <map>
#include <vector>

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

struct WeightUnits {
  std::vector<int> of_row;          // of the table, the unit of each parameter
  std::map<ModelUnit, int> of_use;  // by what forward asks for
};

// What comes before the layers is one unit, each layer one, and what comes
// after them; the latter and a tied embedding are one, since both are read
// together.
WeightUnits divide_into_units(const std::vector<ParameterRow>& rows);

}  // namespace brigade
