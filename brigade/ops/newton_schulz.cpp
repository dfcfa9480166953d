#include "brigade/ops/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/ops/adamw.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "newton_schulz";

void add_product(Tensor& y, const AddedProduct& p, Kernels kernels) {
  if (p.a.is_cpu())
    choose_kernels(kOp, kernels, {&p.a, &p.b}).add_product(y, p);
  else if (p.c.defined())
    at::addmm_out(y, p.c, p.a, p.b, p.beta, p.alpha);
  else
    at::mm_out(y, p.a, p.b);
}

// A part that a cache holds.
constexpr int64_t kPart = 16384;

// A sum in double overflows for no matrix of float32.
double norm_of(const Tensor& x, Kernels kernels) {
  const Tensor flat = x.view({-1});
  if (!x.is_cpu() || x.scalar_type() == torch::kFloat)
    return std::sqrt(
        sum_of_squares(flat.to(torch::kFloat), kernels).item<double>());
  double sum = 0;
  for (int64_t first = 0; first < flat.numel(); first += kPart) {
    const Tensor part =
        flat.narrow(0, first, std::min(kPart, flat.numel() - first));
    sum += sum_of_squares(part.to(torch::kFloat), kernels).item<double>();
  }
  return std::sqrt(sum);
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
  const Tensor divisor = norm.clamp_min(options.eps).to(x.device());
  x = x.is_alias_of(matrix) ? x / divisor : x.div_(divisor);
  const auto [a, b, c] = options.coefficients;
  Tensor gram = torch::empty({x.size(0), x.size(0)}, x.options());
  Tensor factor = torch::empty_like(gram);
  Tensor next = torch::empty_like(x);
  for (int step = 0; step < options.steps; ++step) {
    add_product(
        gram, {.a = x, .b = x.t(), .is_symmetric = true}, options.kernels);
    add_product(
        factor,
        {.a = gram,
         .b = gram,
         .alpha = c,
         .c = gram,
         .beta = b,
         .is_symmetric = true},
        options.kernels);
    add_product(
        next, {.a = factor, .b = x, .c = x, .beta = a}, options.kernels);
    std::swap(x, next);
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
