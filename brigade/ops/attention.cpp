#include "brigade/ops/attention.h"

#include "brigade/ops/attention_checks.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

constexpr const char* kAttentionOp = "attention";

const KernelSet& kernels_for(
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  return choose_kernels(
      kAttentionOp, options.kernels, {&operands.q, &operands.k, &operands.v});
}

AttentionResult run_attention(
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const Tensor& q = operands.q;
  const AttentionResult result{
      at::empty(
          q.sizes(),
          q.options().dtype(options.out_dtype.value_or(q.scalar_type()))),
      at::empty(
          {q.size(0), q.size(2), q.size(1)}, q.options().dtype(wide_dtype(q)))};
  kernels_for(operands, options).attention(result, {}, operands, options);
  return result;
}

AttentionGradients run_backward(
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const AttentionOperands& operands = inputs.operands;
  const AttentionGradients result = empty_attention_gradients(
      operands, options.out_dtype.value_or(operands.q.scalar_type()));
  kernels_for(operands, options)
      .attention_backward(result, {}, inputs, options);
  return result;
}

struct AttentionNode : OnceDifferentiable<AttentionNode> {
  static constexpr const char* kName = "attention";

  static variable_list forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const AttentionOptions& options) {
    const AttentionResult result = run_attention({q, k, v}, options);
    carry(context, options);
    context->save_for_backward({q, k, v, result.out, result.lse});
    context->mark_non_differentiable({result.lse});
    return {result.out, result.lse};
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    variable_list result(4);
    if (!gradients[0].defined())
      return result;
    const auto saved = context->get_saved_variables();
    AttentionOptions options = carried<AttentionOptions>(context);
    options.out_dtype.reset();  // gradients have q's dtype
    const AttentionGradients parts = run_backward(
        {.operands = {saved[0], saved[1], saved[2]},
         .dout = gradients[0],
         .lse = saved[4],
         .out = saved[3]},
        options);
    result[0] = parts.dq;
    result[1] = parts.dk;
    result[2] = parts.dv;
    return result;
  }
};

// Whether both are the same elements of the same memory.
bool same_memory(const Tensor& a, const Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool is_dense(const Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1;
}

}  // namespace

AttentionGradients empty_attention_gradients(
    const AttentionOperands& operands,
    torch::ScalarType dtype) {
  const auto& [q, k, v] = operands;
  const auto flat = [](const Tensor& x) {
    return (is_dense(x) ? x : x.contiguous())
        .reshape({x.size(0), x.size(1), x.size(2) * x.size(3)});
  };
  const auto parts = empty_side_by_side({flat(q), flat(k), flat(v)}, dtype);
  return {
      parts[0].view(q.sizes()),
      parts[1].view(k.sizes()),
      parts[2].view(v.sizes())};
}

AttentionResult attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  check_attention({q, k, v}, options);
  const auto outputs = AttentionNode::apply(q, k, v, options);
  return {outputs[0], outputs[1]};
}

AttentionResult attention_forward(
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(operands, options);
  return run_attention(operands, options);
}

void attention_forward_onto(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(operands, options);
  const bool is_first = !so_far.out.defined();
  require(
      into.out.sizes() == operands.q.sizes() && is_dense(into.out) &&
          (is_first || (so_far.out.sizes() == operands.q.sizes() &&
                        so_far.out.scalar_type() == wide_dtype(operands.q) &&
                        same_memory(into.lse, so_far.lse))),
      kAttentionOp,
      "a result {} was to continue {} for q {}, in the same lse and with a "
      "dense last dim",
      describe(into.out),
      describe(so_far.out),
      describe(operands.q));
  kernels_for(operands, options).attention(into, so_far, operands, options);
}

Tensor attention_delta(const Tensor& dout, const Tensor& out, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  require(
      dout.sizes() == out.sizes(),
      "attention_delta",
      "dout {} and out {} differ in shape",
      describe(dout),
      describe(out));
  const auto dtype = c10::promoteTypes(dout.scalar_type(), out.scalar_type());
  const Tensor a = dout.to(dtype);
  const Tensor b = out.to(dtype);
  return choose_kernels("attention_delta", kernels, {&a, &b})
      .attention_delta(a, b);
}

Tensor delta_of(const AttentionBackwardInputs& inputs, Kernels kernels) {
  return inputs.delta.defined()
             ? inputs.delta
             : attention_delta(inputs.dout, inputs.out, kernels);
}

AttentionGradients attention_backward(
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(inputs.operands, options);
  return run_backward(inputs, options);
}

void attention_backward_into(
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  const AttentionOperands& operands = inputs.operands;
  check_attention(operands, options);
  const auto check_sizes = [](const Tensor& gradient, const Tensor& of) {
    require(
        gradient.sizes() == of.sizes(),
        kAttentionOp,
        "a gradient of {} was to be written into {}",
        describe(of),
        describe(gradient));
  };
  check_sizes(into.dq, operands.q);
  check_sizes(into.dk, operands.k);
  check_sizes(into.dv, operands.v);
  kernels_for(operands, options)
      .attention_backward(into, dq_so_far, inputs, options);
}

void add_partial_gradient(
    Tensor sum,
    const Tensor& other,
    const std::optional<RotaryTable>& rotary,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  require(
      sum.sizes() == other.sizes() && sum.dim() == 4 && is_dense(sum) &&
          sum.scalar_type() == other.scalar_type(),
      "add_partial_gradient",
      "{} was to be added to {}: expected [B, T, H, D] of one dtype, the sum "
      "with a dense last dim",
      describe(other),
      describe(sum));
  choose_kernels("add_partial_gradient", kernels, {&sum, &other})
      .add_partial_gradient(sum, other, rotary);
}

}  // namespace brigade::ops
