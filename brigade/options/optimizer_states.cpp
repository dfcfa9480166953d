#include "brigade/options/optimizer_states.h"

namespace brigade {
namespace {

std::vector<StateSpec> own_states(
    const OptimizerOptions& options,
    StepUnit unit) {
  const std::vector<StateSpec> adamw = {{"exp_avg"}, {"exp_avg_sq"}};
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      break;
    case OptimizerKind::kMuon:
      return unit == StepUnit::kMatrices
                 ? std::vector<StateSpec>{{"muon_momentum"}}
                 : adamw;
    case OptimizerKind::kSgd:
      return options.sgd.momentum == 0
                 ? std::vector<StateSpec>{}
                 : std::vector<StateSpec>{{"momentum_buffer"}};
    case OptimizerKind::kScheduleFreeAdamW:
      return {{"z"}, {"exp_avg_sq"}};
  }
  return adamw;
}

int64_t bytes_of(StateDtype dtype) {
  return dtype == StateDtype::kInt16 ? 2 : 4;
}

}  // namespace

std::vector<StateSpec> optimizer_states(
    const OptimizerOptions& options,
    StepUnit unit,
    WeightWidth weight) {
  std::vector<StateSpec> states = own_states(options, unit);
  if (options.ema_decay > 0)
    states.push_back({kEma});
  if (weight == WeightWidth::k16Bit)
    states.push_back({kMasterLow, StateDtype::kInt16});
  return states;
}

int64_t element_bytes(const std::vector<StateSpec>& states) {
  int64_t sum = 0;
  for (const StateSpec& state : states)
    sum += bytes_of(state.dtype);
  return sum;
}

}  // namespace brigade
