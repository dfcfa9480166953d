#include "brigade/ops/split_master.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kSplitMasterOp = "split_master";

void check_halves(const Tensor& weight, const Tensor& low) {
  require(
      weight.scalar_type() == torch::kBFloat16 &&
          low.scalar_type() == torch::kShort && weight.sizes() == low.sizes() &&
          weight.is_contiguous() && low.is_contiguous(),
      kSplitMasterOp,
      "weight {}, low {}: expected contiguous bf16 and int16 of one shape",
      describe(weight),
      describe(low));
}

}  // namespace

Tensor join_master(const Tensor& weight, const Tensor& low, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_halves(weight, low);
  return choose_kernels(kSplitMasterOp, kernels, {&weight})
      .join_master(weight, low);
}

void split_master(
    const Tensor& master,
    Tensor weight,
    Tensor low,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_halves(weight, low);
  require(
      master.scalar_type() == torch::kFloat && master.is_contiguous() &&
          master.sizes() == weight.sizes(),
      kSplitMasterOp,
      "master {}, weight {}: expected contiguous float32 and bf16 of one shape",
      describe(master),
      describe(weight));
  choose_kernels(kSplitMasterOp, kernels, {&weight})
      .split_master(master, weight, low);
}

}  // namespace brigade::ops
