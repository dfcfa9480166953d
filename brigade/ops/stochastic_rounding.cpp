#include "brigade/ops/stochastic_rounding.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

void round_stochastically(
    const Tensor& values,
    Tensor rounded,
    const RandomBits& bits,
    Kernels kernels) {
  constexpr const char* kOp = "round_stochastically";
  const torch::NoGradGuard no_grad;
  require(
      values.scalar_type() == torch::kFloat && values.is_contiguous() &&
          rounded.scalar_type() == torch::kBFloat16 &&
          rounded.is_contiguous() && values.sizes() == rounded.sizes() &&
          values.dim() == 1,
      kOp,
      "values {}, rounded {}: expected flat float32 and bf16 of one length",
      describe(values),
      describe(rounded));
  choose_kernels(kOp, kernels, {&values})
      .round_stochastically(values, rounded, bits);
}

}  // namespace brigade::ops
