// Which weights of a model part are gathered and freed together in ZeRO's stage
// 3, and which of them each step of forward reads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

struct WeightUnits {
  std::vector<int> of_row;  // of the table, the unit of each parameter
  // By what forward asks for: "model.embed_tokens", "model.layers.3", and ""
  // for what comes after the layers.
  std::map<std::string, int> of_module;
};

// What comes before the layers is one unit, each layer one, and what comes
// after them, but for the final norm of a tied head, which is with its
// embedding: both are read together.
WeightUnits divide_into_units(const std::vector<ParameterRow>& rows);

// The part of forward that reads a parameter: "model.layers.3" of one that is
// in a layer, else its module.
std::string module_of_forward(const std::string& parameter);

}  // namespace brigade
