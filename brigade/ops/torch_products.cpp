#include "brigade/ops/torch_products.h"

#include <ATen/Context.h>
#include <torch/types.h>

#include <exception>

namespace brigade::ops {
namespace {

bool torch_multiplies_bf16() {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kSize = 32;  // libtorch multiplies 16^3 and less by itself
  const torch::Tensor some = torch::ones({kSize, kSize}, torch::kBFloat16);
  try {
    torch::mm(some, some);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void ensure_torch_multiplies_bf16() {
  static const bool tried = [] {
    if (at::globalContext().userEnabledMkldnn() && !torch_multiplies_bf16())
      at::globalContext().setUserEnabledMkldnn(false);
    return true;
  }();
  static_cast<void>(tried);
}

}  // namespace brigade::ops
