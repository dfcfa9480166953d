#include "brigade/kernels/cpu/linear_products.h"

#include "brigade/kernels/cpu/linear_kernel.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

bool kernel_fits(const Tensor& x, const Tensor& weight) {
  return has_kernel(x) && weight.device().is_cpu() &&
         weight.scalar_type() == x.scalar_type();
}

// Below so many rows packing the weight is not worth its while.
constexpr int64_t kFewestRows = 32;

bool linear_kernel_fits(const Tensor& rows, const Tensor& weight) {
  return kernel_fits(rows, weight) && rows.size(0) >= kFewestRows &&
         rows.scalar_type() == torch::kBFloat16 && weight.is_contiguous() &&
         has_linear_kernel(weight.size(0), weight.size(1));
}

// x [M, in], weight [out, in] and y [M, out], in whichever direction.
void check_sizes(const Tensor& x, const Tensor& weight, const Tensor& y) {
  require(
      x.size(0) == y.size(0) && x.size(1) == weight.size(1) &&
          y.size(1) == weight.size(0),
      "linear",
      "input {}, weight {} and output {} do not fit: expected [M, in], "
      "[out, in] and [M, out]",
      describe(x),
      describe(weight),
      describe(y));
}

}  // namespace

void multiply(
    const Tensor& a,
    const Tensor& b,
    Tensor c,
    Destination destination,
    const Tensor& bias) {
  if (kernel_fits(a, b)) {
    product(a, b, c, destination, bias);
    return;
  }
  const Tensor result = at::mm(a, b);
  if (destination == Destination::kAdd)
    c.add_(result);
  else
    c.copy_(bias.defined() ? result + bias : result);
}

void multiply_forward(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& y,
    const Tensor& bias) {
  check_sizes(x, weight, y);
  if (bias.defined() || !linear_kernel_fits(x, weight)) {
    multiply(x, weight.t(), y, Destination::kOverwrite, bias);
    return;
  }
  linear_product(
      {.x = data<uint16_t>(x),
       .weight = data<uint16_t>(weight),
       .y = data<uint16_t>(y),
       .rows = x.size(0),
       .columns = weight.size(0),
       .depth = weight.size(1),
       .x_stride = x.stride(0),
       .y_stride = y.stride(0),
       .weight_in_rows = false});
}

void multiply_input(
    const Tensor& output_grad,
    const Tensor& weight,
    const Tensor& input_grad) {
  check_sizes(input_grad, weight, output_grad);
  if (!linear_kernel_fits(output_grad, weight)) {
    multiply(output_grad, weight, input_grad, Destination::kOverwrite);
    return;
  }
  linear_product(
      {.x = data<uint16_t>(output_grad),
       .weight = data<uint16_t>(weight),
       .y = data<uint16_t>(input_grad),
       .rows = output_grad.size(0),
       .columns = weight.size(1),
       .depth = weight.size(0),
       .x_stride = output_grad.stride(0),
       .y_stride = input_grad.stride(0),
       .weight_in_rows = true});
}

void accumulate_weight(
    const Tensor& output_grad,
    const Tensor& x,
    const Tensor& weight_grad) {
  check_sizes(x, weight_grad, output_grad);
  const bool fits = kernel_fits(output_grad, x) &&
                    x.scalar_type() == torch::kBFloat16 &&
                    weight_grad.scalar_type() == torch::kFloat &&
                    weight_grad.is_contiguous() &&
                    has_weight_kernel(weight_grad.size(0), weight_grad.size(1));
  if (!fits) {
    multiply(output_grad.t(), x, weight_grad, Destination::kAdd);
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
