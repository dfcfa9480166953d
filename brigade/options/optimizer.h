// Which optimizer steps the weights, and its options. A further one is a value
// here with its name, its states (options/optimizer_states.cpp), what makes it
// (optim/make_optimizer.cpp) and its keys (config/training_keys.cpp).
//
// PURE.
#pragma once

#include <cstdint>

#include "brigade/options/choice.h"
#include "brigade/options/kernels.h"
#include "brigade/options/muon.h"
#include "brigade/options/mup.h"

namespace brigade {

// Config key "training.optimizer".
enum class OptimizerKind {
  kAdamW,
  kMuon,  // for matrices; AdamW for the rest
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

// What an optimizer takes at a time.
enum class StepUnit {
  kElements,  // each by itself, in any run of memory
  kMatrices,  // whole matrices, wherever their elements lie
};

// The dtype in which optimizers keep their moments between steps; a step is
// float32's in any case.
enum class MomentDtype {
  kFloat32,
  kBfloat16,  // rounded stochastically, ops/stochastic_rounding.h
  kInt8,      // a byte each and a scale per block, ops/block_codes.h
};
// Their names.
template <>
inline constexpr std::array kChoices<MomentDtype>{
    Choice{MomentDtype::kFloat32, "float32"},
    Choice{MomentDtype::kBfloat16, "bfloat16"},
    Choice{MomentDtype::kInt8, "int8"}};

// The options of AdamW (optim/adamw.h; training.adam_*): torch.optim.AdamW's,
// with its defaults.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  ops::Kernels kernels = ops::Kernels::kAuto;
};

// The options of SGD (optim/sgd.h; training.sgd_*): torch.optim.SGD's, with its
// defaults.
struct SgdOptions {
  double momentum = 0;  // 0: no state is kept
  bool nesterov = false;
};

// The options of schedule-free AdamW (optim/schedule_free_adamw.h), whose betas
// and epsilon are AdamW's. What a step counts in the average: its number to the
// power `step_power` times the highest learning rate so far to the power
// `rate_power`.
struct ScheduleFreeOptions {
  double step_power = 0;
  double rate_power = 2;
};

// The options of each kind; only those of `kind` count.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  AdamWOptions adamw;  // of Muon and schedule-free AdamW too; kernels: of all
  MuonOptions muon;
  SgdOptions sgd;
  ScheduleFreeOptions schedule_free;
  // The decay of a moving average of the weights: average = decay * average +
  // (1 - decay) * weight after each step; 0: none is kept.
  double ema_decay = 0;
  // Config key "training.optimizer_state_dtype": of moments, neither of an
  // average of the weights nor of masters.
  MomentDtype moments = MomentDtype::kFloat32;
  uint64_t seed = 0;  // of the random numbers that bfloat16 moments round by

  // Whether an average of the weights is evaluated and saved.
  bool averages_weights() const {
    return kind == OptimizerKind::kScheduleFreeAdamW || ema_decay > 0;
  }
  // What it takes at a time of the matrices of layers; elements of all else.
  StepUnit matrix_unit() const {
    return kind == OptimizerKind::kMuon ? StepUnit::kMatrices
                                        : StepUnit::kElements;
  }
  // What a run's learning rate, `peak` at the highest, is multiplied with for
  // parameters of this unit.
  double rate_of(StepUnit unit, double peak) const {
    return unit == StepUnit::kMatrices && muon.learning_rate
               ? *muon.learning_rate / peak
               : 1;
  }
  // What mup multiplies it with besides. Adam's updates have elements of one
  // size, so that what they do to an output grows with the inputs; those of
  // matrices have a norm that their scale says.
  double mup_rate(const MupFactors& mup, StepUnit unit) const {
    return mup.values /
           (unit == StepUnit::kElements ? mup.width : muon.growth(mup.width));
  }
  // Multiplies the learning rates that are given here.
  void scale_rates(double factor) {
    if (muon.learning_rate)
      *muon.learning_rate *= factor;
  }
  // Which kernels step, whatever the kind.
  void set_kernels(ops::Kernels kernels) {
    adamw.kernels = kernels;
    muon.newton_schulz.kernels = kernels;
  }
};

}  // namespace brigade
