// What a step minimises: the loss of each token, alone or with what a teacher
// says of it, or that of pairs of a chosen and a rejected answer to one prompt.
#pragma once

#include <array>

#include "brigade/options/choice.h"

namespace brigade {

enum class LossKind {
  kCrossEntropy,
  kDistill,  // ops/soft_targets.h has the formula
  // Losses of pairs (train/preference_loss.h has the formulas):
  kDpo,
  kOrpo,
  kSimPo,
};
template <>
inline constexpr std::array kChoices<LossKind>{
    Choice{LossKind::kCrossEntropy, "cross_entropy"},
    Choice{LossKind::kDistill, "distill"},
    Choice{LossKind::kDpo, "dpo"},
    Choice{LossKind::kOrpo, "orpo"},
    Choice{LossKind::kSimPo, "simpo"}};

// Config keys "training".
struct LossOptions {
  LossKind kind = LossKind::kCrossEntropy;
  double beta = 0.1;   // of pairs: how much a difference of rewards counts
  double gamma = 0.5;  // SimPO: the least difference that is aimed at

  // Distillation: the teacher's share, beside that of cross-entropy.
  double distill_weight = 0.5;

  bool is_of_pairs() const {
    return kind != LossKind::kCrossEntropy && kind != LossKind::kDistill;
  }
  // Whether it compares with the log-probabilities of a reference model.
  bool needs_reference() const { return kind == LossKind::kDpo; }
  bool operator==(const LossOptions&) const = default;
};

}  // namespace brigade
