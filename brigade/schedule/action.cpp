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
  static constexpr const char* kNames[] = {
      "forward",
      "backward",
      "backward_input",
      "backward_weight",
      "send_activation",
      "recv_activation",
      "send_gradient",
      "recv_gradient",
      "reduce_gradients"};
  static_assert(
      std::size(kNames) ==
      static_cast<size_t>(ActionKind::kReduceGradients) + 1);
  return kNames[static_cast<size_t>(kind)];
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
