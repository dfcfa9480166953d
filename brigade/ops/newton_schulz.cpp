#include "brigade/ops/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "brigade/ops/adamw.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "newton_schulz";

// The blocks of a symmetric product's rows: with eight, 0.56 of the product is
// multiplied. Products of fewer rows are slow.
constexpr int64_t kBlocks = 8;
constexpr int64_t kFewestRows = 96;

// a b [n, n] in float32, where it is known to be symmetric: of each block of
// rows what is left of the diagonal, mirrored.
Tensor multiply_symmetric(const Tensor& a, const Tensor& b, Kernels kernels) {
  const int64_t n = a.size(0);
  const int64_t block = std::max(kFewestRows, n / kBlocks);
  const auto& set = choose_kernels(kOp, kernels, {&a, &b});
  Tensor product = torch::empty({n, n}, torch::kFloat);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first);
    Tensor strip = product.narrow(0, first, rows);
    Tensor left = strip.narrow(1, 0, first + rows);
    set.multiply(
        left,
        a.narrow(0, first, rows),
        b.narrow(1, 0, first + rows),
        Destination::kOverwrite);
    if (first > 0)
      product.narrow(0, 0, first)
          .narrow(1, first, rows)
          .copy_(strip.narrow(1, 0, first).t());
  }
  return product;
}

// x x^T, rounded once to x's dtype.
Tensor gram_of(const Tensor& x, Kernels kernels) {
  if (!x.is_cpu())
    return at::mm(x, x.t());
  const auto& set = choose_kernels(kOp, kernels, {&x});
  if (set.halves_symmetric_products(x))
    return multiply_symmetric(x, x.t(), kernels).to(x.scalar_type());
  Tensor gram = torch::empty({x.size(0), x.size(0)}, x.options());
  set.linear(gram, x, x, {});
  return gram;
}

// beta c + alpha a c, rounded once to the operands' dtype; a is symmetric, and
// so is a c where c is a.
Tensor add_product(
    const Tensor& c,
    double beta,
    const Tensor& a,
    double alpha,
    Kernels kernels) {
  if (!a.is_cpu())
    return at::addmm(c, a, c, beta, alpha);
  const auto& set = choose_kernels(kOp, kernels, {&a, &c});
  Tensor product;
  if (alpha != 0 && !set.halves_symmetric_products(c)) {
    product = c.to(torch::kFloat).mul_(beta / alpha);
    set.linear_weight_grad(product, a, c);
    return (alpha == 1 ? product : product.mul_(alpha)).to(a.scalar_type());
  }
  if (c.is_same(a)) {
    product = multiply_symmetric(a, c, kernels);
  } else {
    product = torch::empty(c.sizes(), torch::kFloat);
    set.multiply(product, a, c, Destination::kOverwrite);
  }
  return product.mul_(alpha).add_(c, beta).to(a.scalar_type());
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
    const Tensor gram = gram_of(x, options.kernels);
    const Tensor factor = add_product(gram, b, gram, c, options.kernels);
    x = add_product(x, a, factor, 1, options.kernels);
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
