#include "brigade/ops/input_dropout.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

void drop_elements(
    Tensor rows,
    const InputDropout& dropout,
    uint64_t key,
    Kernels kernels) {
  constexpr const char* kOp = "drop_elements";
  const torch::NoGradGuard no_grad;
  if (!dropout.is_used())
    return;
  require(
      rows.dim() == 2 && rows.is_contiguous() &&
          dropout.token_keys.scalar_type() == torch::kLong &&
          dropout.token_keys.is_contiguous() &&
          dropout.token_keys.numel() == rows.size(0),
      kOp,
      "rows {}, token_keys {}: expected contiguous [M, features] and int64 [M]",
      describe(rows),
      describe(dropout.token_keys));
  choose_kernels(kOp, kernels, {&rows}).drop_elements(rows, dropout, key);
}

}  // namespace brigade::ops
