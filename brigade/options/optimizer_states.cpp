#include "brigade/options/optimizer_states.h"

namespace brigade {
namespace {

constexpr const char* kSecondMoment = "exp_avg_sq";

std::vector<StateSpec> own_states(
    const OptimizerOptions& options,
    StepUnit unit) {
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      break;
    case OptimizerKind::kMuon:
      if (unit == StepUnit::kMatrices)
        return {{"muon_momentum"}};
      break;
    case OptimizerKind::kSgd:
      return options.sgd.momentum == 0
                 ? std::vector<StateSpec>{}
                 : std::vector<StateSpec>{{"momentum_buffer"}};
    case OptimizerKind::kScheduleFreeAdamW:
      return {{"z"}, {kSecondMoment}};
  }
  return {{"exp_avg"}, {kSecondMoment}};
}

double bytes_of(StateDtype dtype) {
  switch (dtype) {
    case StateDtype::kFloat32:
      break;
    case StateDtype::kBfloat16:
    case StateDtype::kInt16:
      return 2;
    case StateDtype::kSignedCodes:
    case StateDtype::kUnsignedCodes:
      return 1 + 4 / static_cast<double>(kBlockNumel);
  }
  return 4;
}

StateDtype dtype_of(const std::string& moment, MomentDtype moments) {
  switch (moments) {
    case MomentDtype::kFloat32:
      break;
    case MomentDtype::kBfloat16:
      return StateDtype::kBfloat16;
    case MomentDtype::kInt8:
      return moment == kSecondMoment ? StateDtype::kUnsignedCodes
                                     : StateDtype::kSignedCodes;
  }
  return StateDtype::kFloat32;
}

}  // namespace

std::vector<StateSpec> optimizer_states(
    const OptimizerOptions& options,
    StepUnit unit,
    WeightWidth weight) {
  std::vector<StateSpec> states = own_states(options, unit);
  for (StateSpec& state : states)
    state.dtype = dtype_of(state.name, options.moments);
  if (options.ema_decay > 0)
    states.push_back({kEma});
  if (weight == WeightWidth::k16Bit)
    states.push_back({kMasterLow, StateDtype::kInt16});
  return states;
}

std::string why_not_kept_in(
    MomentDtype dtype,
    const OptimizerOptions& options) {
  if (dtype == MomentDtype::kFloat32)
    return {};
  const std::string what = std::string("moments in ") + to_string(dtype) +
                           " of the optimizer " + to_string(options.kind);
  if (options.kind == OptimizerKind::kScheduleFreeAdamW)
    return what +
           ", whose z are weights: every step would round what was trained";
  if (options.kind == OptimizerKind::kSgd && options.sgd.momentum == 0)
    return what + ", which without momentum keeps none";
  return {};
}

int64_t state_block_numel(const OptimizerOptions& options) {
  return options.moments == MomentDtype::kInt8 ? kBlockNumel : 1;
}

double element_bytes(const std::vector<StateSpec>& states) {
  double sum = 0;
  for (const StateSpec& state : states)
    sum += bytes_of(state.dtype);
  return sum;
}

}  // namespace brigade
