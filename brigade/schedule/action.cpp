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

char letter_of(ActionKind kind) {
  if (kind == ActionKind::kForward)
    return 'F';
  return kind == ActionKind::kBackwardWeight ? 'W' : 'B';
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
