// How an optimizer steps one parameter.
#pragma once

#include <functional>

#include "brigade/options/optimizer.h"
#include "brigade/param/param.h"

namespace brigade {

struct StepRule {
  double weight_decay = 0.0;
  double rate = 1.0;  // multiplies the step's learning rate
  StepUnit unit = StepUnit::kElements;
  bool operator==(const StepRule&) const = default;
};

// The rule of each parameter.
using StepRuleOf = std::function<StepRule(const Param& param)>;

}  // namespace brigade
