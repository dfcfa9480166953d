#include "brigade/ops/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "brigade/ops/adamw.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "newton_schulz";

// alpha a b + beta c, rounded once to the operands' dtype.
Tensor add_product(const AddedProduct& p, Kernels kernels) {
  if (!p.a.is_cpu())
    return p.c.defined() ? at::addmm(p.c, p.a, p.b, p.beta, p.alpha)
                         : at::mm(p.a, p.b);
  Tensor y = torch::empty({p.a.size(0), p.b.size(1)}, p.a.options());
  choose_kernels(kOp, kernels, {&p.a, &p.b}).add_product(y, p);
  return y;
}

// A sum in double overflows for no matrix of float32.
double norm_of(const Tensor& x, Kernels kernels) {
  const Tensor wide = x.to(torch::kFloat).contiguous().view({-1});
  return std::sqrt(sum_of_squares(wide, kernels).item<double>());
}

}  // namespace

Tensor newton_schulz(const Tensor& matrix, const NewtonSchulzOptions& options) {
  const torch::NoGradGuard no_grad;
  require(
      matrix.dim() == 2 && matrix.is_contiguous() &&
          matrix.scalar_type() == torch::kFloat,
      kOp,
      "the matrix is {}, expected a contiguous float32 tensor [A, B]",
      describe(matrix));
  if (matrix.numel() == 0)
    return matrix.clone();
  const auto dtype =
      options.dtype == MuonDtype::kBfloat16 ? torch::kBFloat16 : torch::kFloat;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  Tensor x = (is_tall ? matrix.t() : matrix).to(dtype).contiguous();
  // torch has the norm in the dtype of the products.
  const Tensor norm =
      torch::full({}, norm_of(x, options.kernels), torch::kDouble).to(dtype);
  x = x / norm.clamp_min(options.eps).to(x.device());
  const auto [a, b, c] = options.coefficients;
  for (int step = 0; step < options.steps; ++step) {
    const Tensor gram = add_product(
        {.a = x, .b = x.t(), .is_symmetric = true}, options.kernels);
    const Tensor factor = add_product(
        {.a = gram,
         .b = gram,
         .alpha = c,
         .c = gram,
         .beta = b,
         .is_symmetric = true},
        options.kernels);
    x = add_product({.a = factor, .b = x, .c = x, .beta = a}, options.kernels);
  }
  return (is_tall ? x.t() : x).to(torch::kFloat).contiguous();
}

double newton_schulz_flops(
    int64_t rows,
    int64_t columns,
    const NewtonSchulzOptions& options) {
  const auto r = static_cast<double>(std::min(rows, columns));
  const auto s = static_cast<double>(std::max(rows, columns));
  return options.steps * (3 * r * r * s + r * r * r);
}

}  // namespace brigade::ops
