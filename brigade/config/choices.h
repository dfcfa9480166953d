// Choices that the config alone knows; those of a component are beside it
// (options/, schedule/, model_spec/).
//
// PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// model.dtype
enum class ModelDtype { kFloat32, kBfloat16 };
template <>
inline constexpr std::array kChoices<ModelDtype>{
    Choice{ModelDtype::kFloat32, "float32"},
    Choice{ModelDtype::kBfloat16, "bfloat16"}};

// model.init
enum class WeightInit { kRandom, kPretrained };
template <>
inline constexpr std::array kChoices<WeightInit>{
    Choice{WeightInit::kRandom, "random"},
    Choice{WeightInit::kPretrained, "pretrained"}};

// distributed.grad_wire: gradient compression; with error feedback in the last
// two.
enum class GradWire { kFp32, kBf16, kFp16, kInt8, kPowerSgd };
template <>
inline constexpr std::array kChoices<GradWire>{
    Choice{GradWire::kFp32, "fp32"},
    Choice{GradWire::kBf16, "bf16"},
    Choice{GradWire::kFp16, "fp16"},
    Choice{GradWire::kInt8, "int8"},
    Choice{GradWire::kPowerSgd, "powersgd"}};

// training.weight_decay_on
enum class WeightDecayOn {
  kAll,       // every parameter, as picotron does
  kMatrices,  // neither norms nor biases
};
template <>
inline constexpr std::array kChoices<WeightDecayOn>{
    Choice{WeightDecayOn::kAll, "all"},
    Choice{WeightDecayOn::kMatrices, "matrices"}};

// training.on_non_finite: a step whose loss or gradient is not finite.
enum class OnNonFinite { kStop, kSkip };
template <>
inline constexpr std::array kChoices<OnNonFinite>{
    Choice{OnNonFinite::kStop, "stop"},
    Choice{OnNonFinite::kSkip, "skip"}};

}  // namespace brigade
