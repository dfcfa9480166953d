// The kernel set of the CPU. Each function hands a tensor's memory to kernels
// and divides their work among the threads of at::parallel_for(); the
// *_call.cpp files define them by op.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// Overrides every function: none is left to ATen.
class CpuKernels final : public KernelSet {
 public:
  const char* name() const override { return "cpu"; }
  // bf16 and float32 on the CPU.
  bool takes(torch::Device device, torch::ScalarType dtype) const override;

  RmsNormResult rms_norm(const RmsNormInputs& inputs) const override;
  Tensor rms_norm_backward(const RmsNormBackwardInputs& inputs) const override;
  Tensor swiglu(const Tensor& gate, const Tensor& up) const override;
  void swiglu_backward(const SwigluBackwardInputs& inputs) const override;
  void rotate(const RotateInputs& inputs) const override;

  void attention(
      const AttentionResult& into,
      const AttentionResult& so_far,
      const AttentionOperands& operands,
      const AttentionOptions& options) const override;
  void attention_backward(
      const AttentionGradients& into,
      const QueryGradientPart& dq_so_far,
      const AttentionBackwardInputs& inputs,
      const AttentionOptions& options) const override;
  Tensor attention_delta(const Tensor& dout, const Tensor& out) const override;
  void add_partial_gradient(
      Tensor sum,
      const Tensor& other,
      const std::optional<RotaryTable>& table) const override;

  void linear(
      Tensor y,
      const Tensor& x,
      const Tensor& weight,
      const Tensor& bias) const override;
  void linear_input_grad(
      Tensor input_grad,
      const Tensor& output_grad,
      const Tensor& weight) const override;
  void linears(const std::vector<LinearOperands>& each) const override;
  void linear_input_grads(
      const std::vector<LinearOperands>& each) const override;
  void linear_weight_grad(
      Tensor weight_grad,
      const Tensor& output_grad,
      const Tensor& x) const override;
  void multiply(
      Tensor c,
      const Tensor& a,
      const Tensor& b,
      Destination destination) const override;

  void add_product(Tensor y, const AddedProduct& product) const override;

  Tensor embedding(const Tensor& weight, const Tensor& ids) const override;
  void embedding_weight_grad(
      Tensor weight_grad,
      const Tensor& ids,
      const Tensor& gradient) const override;

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
  Tensor join_master(const Tensor& weight, const Tensor& low) const override;
  void split_master(const Tensor& master, Tensor weight, Tensor low)
      const override;
  Tensor decode_blocks(const Tensor& codes, const Tensor& scales)
      const override;
  void encode_blocks(const Tensor& values, Tensor codes, Tensor scales)
      const override;
  void round_stochastically(
      const Tensor& values,
      Tensor rounded,
      const RandomBits& bits) const override;
  void drop_elements(Tensor rows, const InputDropout& dropout, uint64_t key)
      const override;
};

}  // namespace brigade::ops
