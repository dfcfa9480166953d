// Options of Muon (optim/muon.h); training.muon_*. PURE.
#pragma once

#include <array>
#include <cmath>
#include <optional>

#include "brigade/options/choice.h"
#include "brigade/options/kernels.h"

namespace brigade {

// What an orthogonal update is multiplied with, by its matrix's rows A and
// columns B, so that one learning rate suits all shapes.
enum class MuonScale {
  kMatchRmsAdamW,  // 0.2 sqrt(max(A, B)): updates as large as AdamW's
  kOriginal,       // sqrt(max(1, A / B))
  kSpectral,       // sqrt(A / B): rates transfer between widths
};
// Their names.
template <>
inline constexpr std::array kChoices<MuonScale>{
    Choice{MuonScale::kMatchRmsAdamW, "match_rms_adamw"},
    Choice{MuonScale::kOriginal, "original"},
    Choice{MuonScale::kSpectral, "spectral_unclamped"}};

// The dtype in which Newton-Schulz multiplies.
enum class MuonDtype {
  kBfloat16,  // products of bf16 with float32 sums, each rounded to bf16
  kFloat32,
};
// Their names.
template <>
inline constexpr std::array kChoices<MuonDtype>{
    Choice{MuonDtype::kBfloat16, "bfloat16"},
    Choice{MuonDtype::kFloat32, "float32"}};

// a X + (b X X^T + c (X X^T)^2) X, so many times.
struct NewtonSchulzOptions {
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};
  int steps = 5;
  double eps = 1e-7;  // the least norm to divide by
  MuonDtype dtype = MuonDtype::kBfloat16;
  ops::Kernels kernels = ops::Kernels::kAuto;
};

// torch.optim.Muon's, with its defaults but for the scale: matrices share the
// learning rate of all that AdamW steps.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  MuonScale scale = MuonScale::kMatchRmsAdamW;
  NewtonSchulzOptions newton_schulz;
  // A run's highest rate of matrices; absent: as of all others. An optimizer
  // steps with the rate that it is given.
  std::optional<double> learning_rate = {};
  // What updates grow by where a model is so many times as wide: of
  // kMatchRmsAdamW by the root; the other scales depend on A / B.
  double growth(double width) const {
    return scale == MuonScale::kMatchRmsAdamW ? std::sqrt(width) : 1;
  }
};

}  // namespace brigade
