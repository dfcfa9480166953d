// One step of a pipeline's rank: what, on which stage, for which micro-batch.
//
// A stage is a contiguous part of the model, counted over the whole pipeline:
// with v virtual stages per rank there are S = ranks * v of them, and stage s
// is on rank s % ranks.
//
// PURE.
#pragma once

#include <string>

#include "brigade/options/choice.h"

namespace brigade {

enum class ActionKind {
  // Computation.
  kForward,
  kBackward,        // both halves in one go
  kBackwardInput,   // the gradient of the stage's input
  kBackwardWeight,  // the gradients of its weights
  // Communication; `stage` is the one that sends or receives. Activations go
  // from stage s to s + 1, gradients from s to s - 1.
  kSendActivation,
  kRecvActivation,
  kSendGradient,
  kRecvGradient,
  // The data-parallel reduction of the stage's gradients may start: they are
  // complete (after the stage's last backward), or become so during the
  // kBackward that is all the stage has left. No micro-batch.
  kReduceGradients,
};
// Their names.
template <>
inline constexpr std::array kChoices<ActionKind>{
    Choice{ActionKind::kForward, "forward"},
    Choice{ActionKind::kBackward, "backward"},
    Choice{ActionKind::kBackwardInput, "backward_input"},
    Choice{ActionKind::kBackwardWeight, "backward_weight"},
    Choice{ActionKind::kSendActivation, "send_activation"},
    Choice{ActionKind::kRecvActivation, "recv_activation"},
    Choice{ActionKind::kSendGradient, "send_gradient"},
    Choice{ActionKind::kRecvGradient, "recv_gradient"},
    Choice{ActionKind::kReduceGradients, "reduce_gradients"}};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};

bool is_computation(ActionKind kind);
bool is_communication(ActionKind kind);  // a send or a receive
bool is_send(ActionKind kind);
bool is_activation(ActionKind kind);  // its send or its receive

// The letter of a computation in drawings: F, B (also for its input half) or W.
char letter_of(ActionKind kind);
// "forward of micro-batch 3 on stage 1"
std::string describe(const Action& action);

}  // namespace brigade
