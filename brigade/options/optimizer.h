// Which optimizer steps the weights, and its options. A further one is a value
// here with its name, its states (options/optimizer_states.cpp), what makes it
// (optim/make_optimizer.cpp) and its keys (config/training_keys.cpp).
//
// PURE.
#pragma once

#include "brigade/options/adamw.h"
#include "brigade/options/choice.h"
#include "brigade/options/muon.h"
#include "brigade/options/schedule_free.h"
#include "brigade/options/sgd.h"

namespace brigade {

// Config key "training.optimizer".
enum class OptimizerKind {
  kAdamW,
  kMuon,  // of matrices; AdamW for the rest
  kSgd,
  kScheduleFreeAdamW,
};
// Their names.
template <>
inline constexpr std::array kChoices<OptimizerKind>{
    Choice{OptimizerKind::kAdamW, "adamw"},
    Choice{OptimizerKind::kMuon, "muon"},
    Choice{OptimizerKind::kSgd, "sgd"},
    Choice{OptimizerKind::kScheduleFreeAdamW, "schedule_free_adamw"}};

// Of each kind; only those of `kind` count.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  AdamWOptions adamw;  // of Muon and of schedule-free AdamW too
  MuonOptions muon;
  SgdOptions sgd;
  ScheduleFreeOptions schedule_free;
  // Of a moving average of the weights: average = decay * average + (1 - decay)
  // * weight after each step; 0: none is kept.
  double ema_decay = 0;

  // Whether an average of the weights is evaluated and saved.
  bool averages_weights() const {
    return kind == OptimizerKind::kScheduleFreeAdamW || ema_decay > 0;
  }
};

}  // namespace brigade
