// The kernel set of ATen calls alone: any device and dtype that libtorch knows.
// It reads values of a tensor on the host only for where documents begin
// (ragged_flash.h), so that work may be queued on a device. The CPU kernels are
// tested against it.
#include <cmath>

#include "brigade/kernels/aten/wide.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/libtorch_versions.h"

namespace brigade::ops {

Tensor wide_product(const Tensor& a, const Tensor& b) {
  if (const auto product = product_in_float32(a, b))
    return *product;
  return at::matmul(wide(a), wide(b));
}

Tensor rounded_product(const Tensor& a, const Tensor& b) {
  if (a.device().is_cpu())
    return wide_product(a, b).to(a.scalar_type());
  return at::matmul(a, b);
}

Tensor
rotated(const Tensor& x, const RotaryTable& table, RotaryDirection direction) {
  const auto halves = wide(x).chunk(2, -1);
  const auto dtype = halves[0].scalar_type();
  const Tensor cos = table.cos.unsqueeze(1).to(dtype);
  const Tensor sin = direction == RotaryDirection::kForward
                         ? table.sin.unsqueeze(1).to(dtype)
                         : -table.sin.unsqueeze(1).to(dtype);
  return at::cat(
      {halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin},
      -1);
}

namespace {

// c = a b, rounded once, where it is to be.
void write_product(Tensor c, const Tensor& a, const Tensor& b) {
  if (c.is_cuda() && c.dim() == 2 && c.scalar_type() == a.scalar_type())
    at::mm_out(c, a, b);
  else
    c.copy_(rounded_product(a, b));
}

class AtenKernels final : public KernelSet {
 public:
  const char* name() const override { return "aten"; }
  bool takes(torch::Device, torch::ScalarType) const override { return true; }
};

void adamw_by_parts(
    const AdamWStep& step,
    Tensor master,
    const Tensor& g,
    Tensor exp_avg,
    Tensor exp_avg_sq) {
  const auto t = static_cast<double>(step.step);
  const double correction1 = 1 - std::pow(step.beta1, t);
  const double correction2 = 1 - std::pow(step.beta2, t);
  master.mul_(1 - step.lr * step.weight_decay);
  exp_avg.mul_(step.beta1).add_(g, 1 - step.beta1);
  exp_avg_sq.mul_(step.beta2).addcmul_(g, g, 1 - step.beta2);
  const Tensor denominator =
      (exp_avg_sq.sqrt() / std::sqrt(correction2)).add_(step.eps);
  master.addcdiv_(exp_avg, denominator, -step.lr / correction1);
}

}  // namespace

RmsNormResult KernelSet::rms_norm(const RmsNormInputs& inputs) const {
  const Tensor sum =
      inputs.residual.defined() ? inputs.x + inputs.residual : inputs.x;
  // With the weight as it is: an offset to it would be rounded.
  if (inputs.weight_offset == 0 &&
      inputs.weight.scalar_type() == sum.scalar_type()) {
    if (const auto fused = fused_rms_norm(sum, inputs.weight, inputs.eps))
      return {fused->normed.contiguous(), sum, fused->rstd};
  }
  const Tensor values = wide(sum);
  const Tensor rstd = at::rsqrt(values.square().mean(-1, true) + inputs.eps);
  return {
      (values * rstd * (wide(inputs.weight) + inputs.weight_offset))
          .to(sum.scalar_type(), false, false, at::MemoryFormat::Contiguous),
      sum,
      rstd};
}

Tensor KernelSet::rms_norm_backward(const RmsNormBackwardInputs& inputs) const {
  const Tensor normed = wide(inputs.x) * inputs.rstd;  // before the weight
  const Tensor dnormed = wide(inputs.dnormed);
  const int64_t columns = inputs.weight.size(0);
  Tensor(inputs.dweight).add_((dnormed * normed).reshape({-1, columns}).sum(0));
  const Tensor g = dnormed * (wide(inputs.weight) + inputs.weight_offset);
  Tensor dx = (g - normed * (g * normed).mean(-1, true)) * inputs.rstd;
  if (inputs.dsum.defined())
    dx.add_(inputs.dsum);
  return dx.to(inputs.x.scalar_type());
}

Tensor KernelSet::swiglu(const Tensor& gate, const Tensor& up) const {
  return (at::silu(wide(gate)) * wide(up))
      .to(gate.scalar_type(), false, false, at::MemoryFormat::Contiguous);
}

void KernelSet::swiglu_backward(const SwigluBackwardInputs& inputs) const {
  const Tensor dout = wide(inputs.dout);
  const Tensor gate = wide(inputs.gate);
  const Tensor up = wide(inputs.up);
  const Tensor sigmoid = at::sigmoid(gate);
  Tensor(inputs.dgate).copy_(dout * up * sigmoid * (gate * (1 - sigmoid) + 1));
  Tensor(inputs.dup).copy_(dout * gate * sigmoid);
}

void KernelSet::rotate(const RotateInputs& inputs) const {
  Tensor(inputs.y).copy_(
      inputs.table ? rotated(inputs.x, *inputs.table, inputs.direction)
                   : inputs.x);
}

void KernelSet::linear(
    Tensor y,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias) const {
  if (x.device().is_cpu()) {
    const Tensor values = wide_product(x, weight.t());
    y.copy_(bias.defined() ? values + wide(bias) : values);
  } else if (bias.defined()) {
    y.copy_(at::addmm(bias, x, weight.t()));
  } else {
    write_product(y, x, weight.t());
  }
}

void KernelSet::linear_input_grad(
    Tensor input_grad,
    const Tensor& output_grad,
    const Tensor& weight) const {
  write_product(input_grad, output_grad, weight);
}

void KernelSet::linear_weight_grad(
    Tensor weight_grad,
    const Tensor& output_grad,
    const Tensor& x) const {
  multiply(weight_grad, output_grad.t(), x, Destination::kAdd);
}

void KernelSet::multiply(
    Tensor c,
    const Tensor& a,
    const Tensor& b,
    Destination destination) const {
  if (destination == Destination::kAdd && add_product_in_float32(c, a, b))
    return;
  const bool rounds = c.scalar_type() == a.scalar_type();
  if (rounds && destination == Destination::kOverwrite) {
    write_product(c, a, b);
    return;
  }
  const Tensor values = rounds ? rounded_product(a, b) : wide_product(a, b);
  if (destination == Destination::kAdd)
    c.add_(values);
  else
    c.copy_(values);
}

Tensor KernelSet::embedding(const Tensor& weight, const Tensor& ids) const {
  return at::index(weight, {ids});
}

void KernelSet::embedding_weight_grad(
    Tensor weight_grad,
    const Tensor& ids,
    const Tensor& gradient) const {
  weight_grad.index_add_(
      0,
      ids.reshape({-1}),
      gradient.reshape({-1, weight_grad.size(1)})
          .to(weight_grad.scalar_type()));
}

void KernelSet::adamw_step(
    const AdamWStep& step,
    const AdamWTensors& tensors,
    AfterRead after_read) const {
  const bool is_split = tensors.master_low.defined();
  const Tensor master = is_split
                            ? join_master(tensors.weight, tensors.master_low)
                            : tensors.weight;
  const Tensor g = tensors.main_grad * step.grad_scale;
  if (!fused_adamw(step, master, g, tensors.exp_avg, tensors.exp_avg_sq))
    adamw_by_parts(step, master, g, tensors.exp_avg, tensors.exp_avg_sq);
  if (is_split)
    split_master(master, tensors.weight, tensors.master_low);
  if (after_read == AfterRead::kZero)
    Tensor(tensors.main_grad).zero_();
}

Tensor KernelSet::sum_of_squares(const Tensor& values) const {
  const Tensor flat = values.reshape({-1}).to(torch::kDouble);
  return flat.square().sum();
}

Tensor KernelSet::join_master(const Tensor& weight, const Tensor& low) const {
  const Tensor upper = weight.view(torch::kShort).to(torch::kInt);
  return (upper.bitwise_left_shift(16) + low.to(torch::kInt))
      .view(torch::kFloat);
}

void KernelSet::split_master(const Tensor& master, Tensor weight, Tensor low)
    const {
  constexpr int kNan = 0x7fc00000;
  const Tensor bits =
      master.view(torch::kInt).masked_fill(master != master, kNan);
  weight.view(torch::kShort)
      .copy_((bits + 0x8000).bitwise_right_shift(16).to(torch::kShort));
  low.copy_(bits.to(torch::kShort));
}

const KernelSet& aten_kernels() {
  static const AtenKernels kernels;
  return kernels;
}

}  // namespace brigade::ops
