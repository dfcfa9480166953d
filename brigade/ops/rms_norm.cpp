#include "brigade/ops/rms_norm.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/plain.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "rms_norm";

void check(const Tensor& x, const Tensor& weight) {
  require(
      x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
      kOp,
      "x {} and weight {} differ in their last dim",
      describe(x),
      describe(weight));
}

Tensor weight_for(const Tensor& weight, WeightGrad weight_grad) {
  return weight_grad == WeightGrad::kReturn ? weight
                                            : accumulating(kOp, weight);
}

}  // namespace

Tensor rms_norm(
    const Tensor& x,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad) {
  check(x, weight);
  return plain::rms_norm(x, weight_for(weight, weight_grad), eps);
}

std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad) {
  check(x, weight);
  require(
      x.sizes() == residual.sizes(),
      "add_rms_norm",
      "x {} and residual {} differ",
      describe(x),
      describe(residual));
  return plain::add_rms_norm(x, residual, weight_for(weight, weight_grad), eps);
}

}  // namespace brigade::ops
