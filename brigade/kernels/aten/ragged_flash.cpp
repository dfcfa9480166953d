#include "brigade/kernels/aten/ragged_flash.h"

#include "brigade/kernels/aten/document_bounds.h"
#include "brigade/kernels/aten/flash_attention.h"
#include "brigade/ops/libtorch_versions.h"

namespace brigade::ops {
namespace {

struct RaggedCall {
  Tensor q, k, v;  // [N, heads, D]
  RaggedSequences<Tensor> sequences;
};

bool is_whole(const std::vector<PositionRange>& positions, int64_t tokens) {
  return positions.empty() ||
         positions == std::vector<PositionRange>{{0, tokens}};
}

// Whether the kernel computes such a mask.
bool is_ragged(
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const int64_t tokens = operands.q.size(1);
  return operands.q.is_cuda() && operands.q.numel() > 0 && options.causal &&
         (options.sliding_window || options.document_starts.defined()) &&
         !options.logit_soft_cap && operands.k.size(1) == tokens &&
         is_whole(options.query_positions, tokens) &&
         is_whole(options.key_positions, tokens);
}

std::optional<RaggedCall> ragged_call(
    const KernelSet& kernels,
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const auto& [q, k, v] = operands;
  if (!is_ragged(operands, options) ||
      !has_flash_attention(
          q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)))
    return std::nullopt;
  const Tensor& starts = options.document_starts;
  const auto documents = starts.defined()
                             ? document_bounds(starts.cpu())
                             : rows_as_documents(q.size(0), q.size(1));
  if (!documents)
    return std::nullopt;
  std::optional<int64_t> window_left;
  if (options.sliding_window && *options.sliding_window < documents->longest)
    window_left = *options.sliding_window - 1;
  return RaggedCall{
      flash_operand(kernels, q, options.query_rotary).flatten(0, 1),
      flash_operand(kernels, k, options.rotary_of_keys()).flatten(0, 1),
      flash_operand(kernels, v, std::nullopt).flatten(0, 1),
      {torch::tensor(documents->bounds, torch::kInt).to(q.device()),
       documents->longest,
       options.scale_of(q),
       window_left}};
}

}  // namespace

bool ragged_flash_forward(
    const KernelSet& kernels,
    const AttentionResult& into,
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const auto call = ragged_call(kernels, operands, options);
  if (!call)
    return false;
  const auto result =
      ragged_flash_attention(call->q, call->k, call->v, call->sequences);
  if (!result)
    return false;
  const auto sizes = operands.q.sizes();
  Tensor(into.out).copy_(result->out.view(sizes));
  Tensor(into.lse).copy_(
      result->lse.view({sizes[2], sizes[0], sizes[1]}).transpose(0, 1));
  return true;
}

bool ragged_flash_backward(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  if (!is_narrow_backward(into, inputs))
    return false;
  const auto call = ragged_call(kernels, inputs.operands, options);
  if (!call)
    return false;
  const auto gradients = ragged_flash_attention_backward(
      inputs.dout.contiguous().flatten(0, 1),
      call->q,
      call->k,
      call->v,
      FlashResult<Tensor>{
          inputs.out.contiguous().flatten(0, 1),
          inputs.lse.transpose(0, 1).contiguous().flatten(1)},
      call->sequences);
  if (!gradients)
    return false;
  write_flash_gradients(
      kernels,
      into,
      {gradients->dq.view(into.dq.sizes()),
       gradients->dk.view(into.dk.sizes()),
       gradients->dv.view(into.dv.sizes())},
      options);
  return true;
}

}  // namespace brigade::ops
