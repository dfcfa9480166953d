// Which kernel set computes an op (ops/kernel_set.h); model.kernels. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

namespace ops {

// Which kernels compute an op.
enum class Kernels {
  // The CPU kernels for operands on the CPU that are all bf16 or all float32,
  // the CUDA kernels for such on one of NVIDIA's GPUs; ATen for any other
  // device or dtype. This is a rule, not a fallback: the same operands always
  // get the same kernels.
  kAuto,
  kCpu,   // the CPU kernels; other operands are an Error
  kAten,  // ATen calls alone, for any device and dtype that libtorch knows
};

}  // namespace ops

template <>
inline constexpr std::array kChoices<ops::Kernels>{
    Choice{ops::Kernels::kAuto, "auto"},
    Choice{ops::Kernels::kCpu, "cpu"},
    Choice{ops::Kernels::kAten, "aten"}};

}  // namespace brigade
