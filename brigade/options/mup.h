// How initial weights and learning rates depend on the width of a model.
//
// With kMup (Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466), rates
// that are best at one width are about the best at another: rules by class of
// parameter, relative to a base width at which they are the standard ones. They
// change initial weights and rates alone, as in the paper's table 3, so that
// the model that is saved is an ordinary one. What its tables 8 and 9 write as
// factors of the logits and of attention's scores lies in the weights before
// them: the head's (of a tied one the last norm's), and q's or its norm's.
// model_spec/parameter_table.cpp has the rules; Adam's and Muon's updates do
// not depend on the size of gradients, which is why the two are equal.
#pragma once

#include <cmath>
#include <cstdint>

#include "brigade/options/choice.h"

namespace brigade {

// Rules for first values and rates; training.parametrization.
enum class Parametrization { kStandard, kMup };
// Their texts in configs.
template <>
inline constexpr std::array kChoices<Parametrization>{
    Choice{Parametrization::kStandard, "standard"},
    Choice{Parametrization::kMup, "mup"}};

// Config keys training.mup_*.
struct MupOptions {
  Parametrization parametrization = Parametrization::kStandard;
  int64_t base_hidden_size = 0;  // at which mup is the standard; 0: not given
  int64_t base_head_dim = 0;     // the same; 0: the model's own
  bool is_used() const { return parametrization == Parametrization::kMup; }
  // The model's width over the base's; 1: nothing changes.
  double width(int64_t hidden_size) const {
    if (!is_used() || base_hidden_size == 0)
      return 1;
    return static_cast<double>(hidden_size) /
           static_cast<double>(base_hidden_size);
  }
  // What attention's scores are multiplied with, beside their 1 / sqrt(D), so
  // that they fall as 1 / D and are the standard ones at the base.
  double score_factor(int64_t head_dim) const {
    if (!is_used() || base_head_dim == 0)
      return 1;
    return std::sqrt(
        static_cast<double>(base_head_dim) / static_cast<double>(head_dim));
  }
  bool operator==(const MupOptions&) const = default;
};

// What mup makes of one parameter.
struct MupFactors {
  // The factor of its values, first ones and updates: what the paper multiplies
  // its output with.
  double values = 1;
  // The number of inputs of a matrix between hidden states, over the base's:
  // its first values fall as the root, Adam's rate in proportion.
  double width = 1;
  bool operator==(const MupFactors&) const = default;
};

}  // namespace brigade
