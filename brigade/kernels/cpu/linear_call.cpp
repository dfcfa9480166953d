// The matrix products of linears, each by what is quickest for its operands.
// Forward of up to four rows packs nothing (row_product.h). Tiles of ours
// (linear_kernel.h) multiply bf16 with widths that are multiples of 32: on AMX
// and BFMMLA all three products, forward without a bias and from 32 rows on,
// with AVX512-BF16 the weight's gradient. Several weights with rows of their
// own have a kernel on AMX (up to 128 rows each) and AVX512-BF16
// (ragged_kernel.h). product.h computes the rest.
#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/linear_kernel.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/ragged_kernel.h"
#include "brigade/kernels/cpu/row_product.h"

namespace brigade::ops {
namespace {

bool linear_kernel_fits(const Tensor& rows, const Tensor& weight) {
  return rows.size(0) >= kFewestTileRows &&
         rows.scalar_type() == torch::kBFloat16 &&
         weight.scalar_type() == torch::kBFloat16 && weight.is_contiguous() &&
         has_linear_kernel(weight.size(0), weight.size(1));
}

LinearProduct forward_product(const LinearOperands& of) {
  return {
      .x = data<uint16_t>(of.x),
      .weight = data<uint16_t>(of.weight),
      .y = data<uint16_t>(of.y),
      .rows = of.x.size(0),
      .columns = of.y.size(1),
      .depth = of.x.size(1),
      .x_stride = of.x.stride(0),
      .y_stride = of.y.stride(0),
      .weight_in_rows = false};
}

LinearProduct input_grad_product(const LinearOperands& of) {
  LinearProduct product = forward_product({of.y, of.weight, of.x});
  product.weight_in_rows = true;
  return product;
}

bool ragged_kernel_fits(const LinearOperands& one) {
  return one.x.scalar_type() == torch::kBFloat16 &&
         one.weight.scalar_type() == torch::kBFloat16 &&
         one.weight.is_contiguous() &&
         has_ragged_kernel(
             one.x.size(0), one.weight.size(0), one.weight.size(1));
}

// By the kernel of rows that are few, or by `multiply` one by one.
template <typename MakeProduct, typename Multiply>
void multiply_each(
    const std::vector<LinearOperands>& each,
    const MakeProduct& make,
    const Multiply& multiply) {
  std::vector<LinearProduct> ragged;
  for (const LinearOperands& one : each) {
    if (ragged_kernel_fits(one))
      ragged.push_back(make(one));
    else
      multiply(one);
  }
  ragged_products(ragged);
}

bool row_product_fits(const Tensor& y, const Tensor& x, const Tensor& weight) {
  return x.size(0) <= kMostProductRows && weight.stride(1) == 1 &&
         x.scalar_type() == weight.scalar_type() &&
         y.scalar_type() == weight.scalar_type();
}

// Elements of the weight that are worth a thread.
constexpr int64_t kWeightPerTask = 32768;

void product_of_rows(
    const Tensor& y,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias) {
  const int64_t depth = weight.size(1);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const RowProduct<T> p{
        .x = data<T>(x),
        .weight = data<T>(weight),
        .bias = bias.defined() ? data<T>(bias) : nullptr,
        .y = data<T>(y),
        .rows = x.size(0),
        .depth = depth,
        .x_stride = x.stride(0),
        .weight_stride = weight.stride(0),
        .y_stride = y.stride(0)};
    run_in_tasks(
        weight.size(0), rows_per_task(depth, kWeightPerTask), row_product, p);
  });
}

}  // namespace

void CpuKernels::linears(const std::vector<LinearOperands>& each) const {
  multiply_each(each, forward_product, [&](const LinearOperands& one) {
    linear(one.y, one.x, one.weight, {});
  });
}

void CpuKernels::linear_input_grads(
    const std::vector<LinearOperands>& each) const {
  multiply_each(each, input_grad_product, [&](const LinearOperands& one) {
    linear_input_grad(one.x, one.y, one.weight);
  });
}

void CpuKernels::multiply(
    Tensor c,
    const Tensor& a,
    const Tensor& b,
    Destination destination) const {
  product(a, b, c, destination);
}

void CpuKernels::add_product(Tensor y, const AddedProduct& p) const {
  const bool in_rows = p.b.stride(1) == 1;
  const Tensor weight = in_rows ? p.b : p.b.t();
  if (!linear_kernel_fits(p.a, weight) || p.a.stride(1) != 1) {
    KernelSet::add_product(y, p);
    return;
  }
  LinearProduct product = forward_product({p.a, weight, y});
  product.weight_in_rows = in_rows;
  product.alpha = static_cast<float>(p.alpha);
  product.addend = p.c.defined() ? data<uint16_t>(p.c) : nullptr;
  product.beta = static_cast<float>(p.beta);
  product.is_symmetric = p.is_symmetric;
  linear_product(product);
}

void CpuKernels::linear(
    Tensor y,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias) const {
  if (row_product_fits(y, x, weight)) {
    product_of_rows(y, x, weight, bias);
    return;
  }
  if (bias.defined() || !linear_kernel_fits(x, weight)) {
    product(x, weight.t(), y, Destination::kOverwrite, bias);
    return;
  }
  linear_product(forward_product({x, weight, y}));
}

void CpuKernels::linear_input_grad(
    Tensor input_grad,
    const Tensor& output_grad,
    const Tensor& weight) const {
  if (!linear_kernel_fits(output_grad, weight)) {
    product(output_grad, weight, input_grad);
    return;
  }
  linear_product(input_grad_product({input_grad, weight, output_grad}));
}

void CpuKernels::linear_weight_grad(
    Tensor weight_grad,
    const Tensor& output_grad,
    const Tensor& x) const {
  const bool fits = x.scalar_type() == torch::kBFloat16 &&
                    output_grad.scalar_type() == torch::kBFloat16 &&
                    weight_grad.scalar_type() == torch::kFloat &&
                    weight_grad.is_contiguous() &&
                    has_weight_kernel(weight_grad.size(0), weight_grad.size(1));
  if (!fits) {
    product(output_grad.t(), x, weight_grad, Destination::kAdd);
    return;
  }
  add_weight_product(
      {.output_grad = data<uint16_t>(output_grad),
       .x = data<uint16_t>(x),
       .weight_grad = data<float>(weight_grad),
       .tokens = x.size(0),
       .out = weight_grad.size(0),
       .in = weight_grad.size(1),
       .output_grad_stride = output_grad.stride(0),
       .x_stride = x.stride(0)});
}

}  // namespace brigade::ops
