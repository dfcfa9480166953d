#include "brigade/schedule/action.h"

#include <fmt/format.h>

namespace brigade {

bool is_computation(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return true;
    default:
      return false;
  }
}

bool is_communication(ActionKind kind) {
  return !is_computation(kind) && kind != ActionKind::kReduceGradients;
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation ||
         kind == ActionKind::kSendGradient;
}

bool is_activation(ActionKind kind) {
  return kind == ActionKind::kSendActivation ||
         kind == ActionKind::kRecvActivation;
}

const char* to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "backward_input";
    case ActionKind::kBackwardWeight:
      return "backward_weight";
    case ActionKind::kSendActivation:
      return "send_activation";
    case ActionKind::kRecvActivation:
      return "recv_activation";
    case ActionKind::kSendGradient:
      return "send_gradient";
    case ActionKind::kRecvGradient:
      return "recv_gradient";
    case ActionKind::kReduceGradients:
      return "reduce_gradients";
  }
  return "?";
}

std::string describe(const Action& action) {
  if (action.kind == ActionKind::kReduceGradients)
    return fmt::format("{} of stage {}", to_string(action.kind), action.stage);
  return fmt::format(
      "{} of micro-batch {} on stage {}",
      to_string(action.kind),
      action.micro_batch,
      action.stage);
}

}  // namespace brigade
