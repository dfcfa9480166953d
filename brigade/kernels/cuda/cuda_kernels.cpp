// The kernel set of NVIDIA's GPUs: ATen's products and flash attention, and one
// kernel each for what ATen computes in several passes over memory. Operands
// that these do not take (half, double, rows of odd sizes) are ATen's.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <memory>

#include "brigade/kernels/aten/grouped_products.h"
#include "brigade/kernels/cuda/head.h"
#include "brigade/kernels/cuda/launch.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

using cuda::Element;

// Makes the device of a tensor the current one, and knows its stream.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Tensor& x)
      : guard_(x.device()),
        stream_(c10::cuda::getCurrentCUDAStream(x.device().index())) {}
  CUstream_st* stream() const { return stream_.stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

Element element_of(const Tensor& x) {
  return x.scalar_type() == torch::kFloat ? Element::kFloat
                                          : Element::kBFloat16;
}

bool is_packed(int64_t elements, const Tensor& x) {
  return elements * x.element_size() % cuda::kPackBytes == 0;
}
bool begins_packed(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % cuda::kPackBytes ==
         0;
}
// Whether the last dim is dense and each run of it is packed.
bool has_packed_rows(const Tensor& x) {
  if (x.stride(-1) != 1 || !is_packed(x.size(-1), x) || !begins_packed(x))
    return false;
  for (int64_t dim = 0; dim + 1 < x.dim(); ++dim) {
    if (!is_packed(x.stride(dim), x))
      return false;
  }
  return true;
}
template <typename... Tensors>
bool have_packed_rows(const Tensors&... x) {
  return (has_packed_rows(x) && ...);
}

const void* address(const Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}
void* written(const Tensor& x) {
  return x.defined() ? x.data_ptr() : nullptr;
}

cuda::Rows rows_of(const Tensor& x) {
  return {address(x), x.stride(0)};
}
cuda::WrittenRows written_rows_of(const Tensor& x) {
  return {written(x), x.stride(0)};
}
cuda::Heads heads_of(const Tensor& x) {
  return {written(x), x.stride(0), x.stride(1), x.stride(2)};
}

class CudaKernels final : public KernelSet {
 public:
  const char* name() const override { return "cuda"; }
  bool takes(torch::Device device, torch::ScalarType dtype) const override {
    return device.is_cuda() &&
           (dtype == torch::kBFloat16 || dtype == torch::kFloat);
  }

  RmsNormResult rms_norm(const RmsNormInputs& inputs) const override;
  Tensor rms_norm_backward(const RmsNormBackwardInputs& inputs) const override;
  Tensor swiglu(const Tensor& gate, const Tensor& up) const override;
  void swiglu_backward(const SwigluBackwardInputs& inputs) const override;
  void rotate(const RotateInputs& inputs) const override;
  void linears(const std::vector<LinearOperands>& each) const override;
  void linear_input_grads(
      const std::vector<LinearOperands>& each) const override;
  Tensor rows_of_pairs(
      const Tensor& x,
      const ExpertPairs& pairs,
      const Tensor& weights) const override;
  Tensor sum_of_pairs(
      const Tensor& rows,
      const ExpertPairs& pairs,
      const Tensor& weights) const override;
  Tensor products_of_pairs(
      const Tensor& rows,
      const Tensor& x,
      const ExpertPairs& pairs) const override;
  int64_t head_rows_at_once(const HeadSize& size) const override;
  std::unique_ptr<HeadChunk> make_head_chunk(
      const HeadInputs& inputs,
      const HeadStatistics& statistics) const override;
  void adamw_step(
      const AdamWStep& step,
      const AdamWTensors& tensors,
      AfterRead after_read) const override;
  Tensor sum_of_squares(const Tensor& values) const override;
};

RmsNormResult CudaKernels::rms_norm(const RmsNormInputs& inputs) const {
  const Tensor x = inputs.x.contiguous();
  const Tensor residual = inputs.residual.defined()
                              ? inputs.residual.contiguous()
                              : inputs.residual;
  const Tensor weight = inputs.weight.contiguous();
  if (!have_packed_rows(x, weight) ||
      (residual.defined() && !has_packed_rows(residual)))
    return KernelSet::rms_norm(inputs);
  auto rstd_sizes = x.sizes().vec();
  rstd_sizes.back() = 1;
  const RmsNormResult result{
      at::empty_like(x),
      residual.defined() ? at::empty_like(x) : inputs.x,
      at::empty(rstd_sizes, x.options().dtype(torch::kFloat))};
  const OnDeviceOf device(x);
  cuda::launch_rms_norm(
      element_of(x),
      {.x = address(x),
       .residual = address(residual),
       .weight = address(weight),
       .normed = written(result.normed),
       .sum = residual.defined() ? written(result.sum) : nullptr,
       .rstd = result.rstd.data_ptr<float>(),
       .rows = x.numel() / x.size(-1),
       .columns = x.size(-1),
       .eps = static_cast<float>(inputs.eps),
       .weight_offset = static_cast<float>(inputs.weight_offset)},
      device.stream());
  return result;
}

Tensor CudaKernels::rms_norm_backward(
    const RmsNormBackwardInputs& inputs) const {
  const Tensor x = inputs.x.contiguous();
  const Tensor dnormed = inputs.dnormed.contiguous();
  const Tensor dsum =
      inputs.dsum.defined() ? inputs.dsum.contiguous() : inputs.dsum;
  const Tensor weight = inputs.weight.contiguous();
  const int64_t columns = x.size(-1);
  if (!have_packed_rows(x, dnormed, weight) ||
      (dsum.defined() && !has_packed_rows(dsum)) ||
      columns > cuda::kMostNormColumns)
    return KernelSet::rms_norm_backward(inputs);
  const int64_t rows = x.numel() / columns;
  const OnDeviceOf device(x);
  const int64_t blocks =
      cuda::rms_norm_backward_blocks(element_of(x), rows, columns);
  const Tensor dx = at::empty_like(x);
  const Tensor partial =
      at::empty({blocks, columns}, x.options().dtype(torch::kFloat));
  cuda::launch_rms_norm_backward(
      element_of(x),
      {.dnormed = address(dnormed),
       .dsum = address(dsum),
       .x = address(x),
       .weight = address(weight),
       .rstd = inputs.rstd.const_data_ptr<float>(),
       .dx = written(dx),
       .partial_dweight = partial.data_ptr<float>(),
       .rows = rows,
       .columns = columns,
       .blocks = blocks,
       .weight_offset = static_cast<float>(inputs.weight_offset)},
      device.stream());
  Tensor(inputs.dweight).add_(partial.sum(0));
  return dx;
}

Tensor CudaKernels::swiglu(const Tensor& gate, const Tensor& up) const {
  const int64_t columns = gate.size(-1);
  const Tensor gate_rows = gate.reshape({-1, columns});
  const Tensor up_rows = up.reshape({-1, columns});
  if (!have_packed_rows(gate_rows, up_rows))
    return KernelSet::swiglu(gate, up);
  const Tensor out = at::empty(gate.sizes(), gate.options());
  const OnDeviceOf device(gate);
  cuda::launch_swiglu(
      element_of(gate),
      {.gate = rows_of(gate_rows),
       .up = rows_of(up_rows),
       .out = {written(out), columns},
       .rows = gate_rows.size(0),
       .columns = columns},
      device.stream());
  return out;
}

void CudaKernels::swiglu_backward(const SwigluBackwardInputs& inputs) const {
  if (!have_packed_rows(
          inputs.dout, inputs.gate, inputs.up, inputs.dgate, inputs.dup)) {
    KernelSet::swiglu_backward(inputs);
    return;
  }
  const OnDeviceOf device(inputs.dout);
  cuda::launch_swiglu_backward(
      element_of(inputs.dout),
      {.dout = rows_of(inputs.dout),
       .gate = rows_of(inputs.gate),
       .up = rows_of(inputs.up),
       .dgate = written_rows_of(inputs.dgate),
       .dup = written_rows_of(inputs.dup),
       .rows = inputs.dout.size(0),
       .columns = inputs.dout.size(1)},
      device.stream());
}

void CudaKernels::rotate(const RotateInputs& inputs) const {
  const Tensor& x = inputs.x;
  if (!inputs.table || !have_packed_rows(inputs.y, x) ||
      !is_packed(x.size(3) / 2, x)) {
    KernelSet::rotate(inputs);
    return;
  }
  const Tensor cos = inputs.table->cos.contiguous();
  const Tensor sin = inputs.table->sin.contiguous();
  const OnDeviceOf device(x);
  cuda::launch_rotate(
      element_of(x),
      {.y = heads_of(inputs.y),
       .x = heads_of(x),
       .cos = cos.const_data_ptr<float>(),
       .sin = sin.const_data_ptr<float>(),
       .batches = x.size(0),
       .tokens = x.size(1),
       .heads = x.size(2),
       .half = x.size(3) / 2,
       .is_backward = inputs.direction == RotaryDirection::kBackward},
      device.stream());
}

// Elsewhere libtorch 2.8 throws, and later ones multiply one by one after a
// read on the host.
bool has_grouped_products(const std::vector<LinearOperands>& each) {
  constexpr int kHopper = 9;
  return !each.empty() &&
         at::cuda::getDeviceProperties(each[0].x.device().index())->major ==
             kHopper;
}

void CudaKernels::linears(const std::vector<LinearOperands>& each) const {
  if (!has_grouped_products(each) ||
      !multiply_grouped(each, GroupedSide::kForward))
    KernelSet::linears(each);
}

void CudaKernels::linear_input_grads(
    const std::vector<LinearOperands>& each) const {
  if (!has_grouped_products(each) ||
      !multiply_grouped(each, GroupedSide::kInputGrads))
    KernelSet::linear_input_grads(each);
}

Tensor CudaKernels::rows_of_pairs(
    const Tensor& x,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  // Without rows there is nothing to launch.
  if (!have_packed_rows(x) || pairs.pair_of_row.numel() == 0)
    return KernelSet::rows_of_pairs(x, pairs, weights);
  const Tensor rows =
      at::empty({pairs.pair_of_row.size(0), x.size(1)}, x.options());
  const OnDeviceOf device(x);
  cuda::launch_rows_of_pairs(
      element_of(x),
      {.x = rows_of(x),
       .pair_of_row = pairs.pair_of_row.const_data_ptr<int64_t>(),
       .weights = static_cast<const float*>(address(weights)),
       .rows = {written(rows), rows.stride(0)},
       .numel = rows.size(0),
       .columns = rows.size(1),
       .per_token = pairs.per_token()},
      device.stream());
  return rows;
}

Tensor CudaKernels::sum_of_pairs(
    const Tensor& rows,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  if (!have_packed_rows(rows))
    return KernelSet::sum_of_pairs(rows, pairs, weights);
  const Tensor sum = at::empty({pairs.tokens(), rows.size(1)}, rows.options());
  const OnDeviceOf device(rows);
  cuda::launch_sum_of_pairs(
      element_of(rows),
      {.rows = rows_of(rows),
       .row_of_pair = pairs.row_of_pair.const_data_ptr<int64_t>(),
       .weights = static_cast<const float*>(address(weights)),
       .sum = {written(sum), sum.stride(0)},
       .tokens = sum.size(0),
       .columns = sum.size(1),
       .per_token = pairs.per_token()},
      device.stream());
  return sum;
}

Tensor CudaKernels::products_of_pairs(
    const Tensor& rows,
    const Tensor& x,
    const ExpertPairs& pairs) const {
  if (!have_packed_rows(rows, x))
    return KernelSet::products_of_pairs(rows, x, pairs);
  const Tensor products =
      at::empty(pairs.row_of_pair.sizes(), rows.options().dtype(torch::kFloat));
  const OnDeviceOf device(rows);
  cuda::launch_products_of_pairs(
      element_of(rows),
      {.rows = rows_of(rows),
       .x = rows_of(x),
       .row_of_pair = pairs.row_of_pair.const_data_ptr<int64_t>(),
       .products = products.data_ptr<float>(),
       .pairs = products.numel(),
       .columns = rows.size(1),
       .per_token = pairs.per_token()},
      device.stream());
  return products;
}

// Some 1.6 GB of logits and gradients at a time with a vocabulary of 128,256.
constexpr int64_t kHeadRows = 2048;

int64_t CudaKernels::head_rows_at_once(const HeadSize& size) const {
  return size.needs_aten || size.has_teacher
             ? KernelSet::head_rows_at_once(size)
             : kHeadRows;
}

std::unique_ptr<HeadChunk> CudaKernels::make_head_chunk(
    const HeadInputs& inputs,
    const HeadStatistics& statistics) const {
  if (inputs.logit_soft_cap || inputs.teacher || inputs.valid_rows == 0)
    return KernelSet::make_head_chunk(inputs, statistics);
  return make_cuda_head_chunk(inputs, statistics);
}

void CudaKernels::adamw_step(
    const AdamWStep& step,
    const AdamWTensors& tensors,
    AfterRead after_read) const {
  const auto t = static_cast<double>(step.step);
  const OnDeviceOf device(tensors.main_grad);
  cuda::launch_adamw(
      {.main_grad = tensors.main_grad.data_ptr<float>(),
       .exp_avg = tensors.exp_avg.data_ptr<float>(),
       .exp_avg_sq = tensors.exp_avg_sq.data_ptr<float>(),
       .weight = written(tensors.weight),
       .low = static_cast<int16_t*>(written(tensors.master_low)),
       .numel = tensors.main_grad.numel(),
       .grad_scale = static_cast<float>(step.grad_scale),
       .beta1 = static_cast<float>(step.beta1),
       .beta2 = static_cast<float>(step.beta2),
       .eps = static_cast<float>(step.eps),
       .one_minus_beta1 = static_cast<float>(1 - step.beta1),
       .one_minus_beta2 = static_cast<float>(1 - step.beta2),
       .keep = static_cast<float>(1 - step.lr * step.weight_decay),
       .rate = static_cast<float>(step.lr / (1 - std::pow(step.beta1, t))),
       .root_scale =
           static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, t))),
       .zero_main_grad = after_read == AfterRead::kZero},
      device.stream());
}

Tensor CudaKernels::sum_of_squares(const Tensor& values) const {
  if (values.scalar_type() != torch::kFloat || !values.is_contiguous())
    return KernelSet::sum_of_squares(values);
  const Tensor partial =
      at::empty({cuda::kSquareBlocks}, values.options().dtype(torch::kDouble));
  const OnDeviceOf device(values);
  cuda::launch_sum_of_squares(
      values.const_data_ptr<float>(),
      values.numel(),
      partial.data_ptr<double>(),
      device.stream());
  return partial.sum();
}

}  // namespace

const KernelSet* cuda_kernels() {
  static const CudaKernels kernels;
  return &kernels;
}

}  // namespace brigade::ops
