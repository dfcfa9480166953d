#include "brigade/ops/kernel_set.h"

#include <algorithm>

#include "brigade/ops/describe.h"

namespace brigade::ops {

void KernelSet::linears(const std::vector<LinearOperands>& each) const {
  for (const LinearOperands& one : each)
    linear(one.y, one.x, one.weight, {});
}

void KernelSet::linear_input_grads(
    const std::vector<LinearOperands>& each) const {
  for (const LinearOperands& one : each)
    linear_input_grad(one.x, one.y, one.weight);
}

namespace {

// The blocks of a symmetric product's rows: with eight, 0.56 of the product is
// multiplied. Products of fewer rows are slow.
constexpr int64_t kBlocks = 8;
constexpr int64_t kFewestRows = 96;

// product [n, n] = a b, known to be symmetric: of each block of rows what is
// left of the diagonal, mirrored.
void multiply_symmetric(
    const KernelSet& kernels,
    const Tensor& product,
    const Tensor& a,
    const Tensor& b) {
  const int64_t n = a.size(0);
  const int64_t block = std::max(kFewestRows, n / kBlocks);
  for (int64_t first = 0; first < n; first += block) {
    const int64_t rows = std::min(block, n - first);
    const Tensor strip = product.narrow(0, first, rows);
    kernels.multiply(
        strip.narrow(1, 0, first + rows),
        a.narrow(0, first, rows),
        b.narrow(1, 0, first + rows),
        Destination::kOverwrite);
    if (first > 0)
      product.narrow(0, 0, first)
          .narrow(1, first, rows)
          .copy_(strip.narrow(1, 0, first).t());
  }
}

}  // namespace

void KernelSet::add_product(Tensor y, const AddedProduct& p) const {
  const bool is_wide = y.scalar_type() == wide_dtype(y);
  Tensor product =
      is_wide ? y : torch::empty(y.sizes(), y.options().dtype(torch::kFloat));
  if (p.is_symmetric)
    multiply_symmetric(*this, product, p.a, p.b);
  else
    multiply(product, p.a, p.b, Destination::kOverwrite);
  if (p.alpha != 1)
    product.mul_(p.alpha);
  if (p.c.defined())
    product.add_(p.c, p.beta);
  if (!is_wide)
    y.copy_(product);
}

namespace {

const Tensor* first_defined(std::initializer_list<const Tensor*> operands) {
  for (const Tensor* operand : operands) {
    if (operand->defined())
      return operand;
  }
  return nullptr;
}

}  // namespace

const KernelSet& choose_kernels(
    std::string_view op,
    Kernels wanted,
    std::initializer_list<const Tensor*> operands) {
  if (wanted == Kernels::kAten)
    return aten_kernels();
  const Tensor* first = first_defined(operands);
  const KernelSet& own = first != nullptr && first->is_cuda() &&
                                 cuda_kernels() != nullptr &&
                                 wanted == Kernels::kAuto
                             ? *cuda_kernels()
                             : cpu_kernels();
  const Tensor* refused = nullptr;
  for (const Tensor* operand : operands) {
    if (!operand->defined())
      continue;
    if (operand->numel() == 0)
      return aten_kernels();
    if (!own.takes(operand->device(), operand->scalar_type()) ||
        operand->scalar_type() != first->scalar_type() ||
        operand->device() != first->device())
      refused = operand;
  }
  if (refused == nullptr)
    return own;
  require(
      wanted == Kernels::kAuto,
      op,
      "the CPU kernels were asked for, but an operand is {} on {}; they take "
      "tensors on the CPU that are all bf16 or all float32; set the kernels to "
      "auto or aten",
      describe(*refused),
      refused->device().str());
  return aten_kernels();
}

}  // namespace brigade::ops
