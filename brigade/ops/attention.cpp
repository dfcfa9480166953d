#include "brigade/ops/attention.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/attention_call.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

constexpr const char* kOp = "attention";

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

AttentionResult run_forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  if (!attention_kernel_fits(q, k, options))
    return plain::attention(q, k, v, options);
  const AttentionResult result{
      at::empty(
          q.sizes(),
          q.options().dtype(options.out_dtype.value_or(q.scalar_type()))),
      at::empty(
          {q.size(0), q.size(2), q.size(1)}, q.options().dtype(torch::kFloat))};
  run_attention_forward(result, {}, q, k, v, options);
  return result;
}

AttentionGradients run_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options) {
  if (!attention_kernel_fits(q, k, options))
    return plain::attention_backward(dout, q, k, v, lse, delta, options);
  const AttentionGradients result = empty_attention_gradients(
      dense(q),
      dense(k),
      dense(v),
      options.out_dtype.value_or(q.scalar_type()));
  run_attention_backward(result, {}, dout, q, k, v, lse, delta, options);
  return result;
}

struct Node : torch::autograd::Function<Node> {
  static variable_list forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const AttentionOptions& options) {
    const AttentionResult result = run_forward(q, k, v, options);
    carry(context, options);
    context->save_for_backward({q, k, v, result.out, result.lse});
    context->mark_non_differentiable({result.lse});
    return {result.out, result.lse};
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    variable_list result(4);
    if (!gradients[0].defined())
      return result;
    const auto saved = context->get_saved_variables();
    AttentionOptions options = carried<AttentionOptions>(context);
    options.out_dtype.reset();  // gradients have q's dtype
    const AttentionGradients parts = run_backward(
        gradients[0],
        saved[0],
        saved[1],
        saved[2],
        saved[4],
        attention_delta(gradients[0], saved[3]),
        options);
    result[0] = parts.dq;
    result[1] = parts.dk;
    result[2] = parts.dv;
    return result;
  }
};

}  // namespace

AttentionGradients empty_attention_gradients(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    torch::ScalarType dtype) {
  const auto flat = [](const Tensor& x) {
    return x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)});
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
  check_attention(q, k, v, options);
  if (!attention_kernel_fits(q, k, options))
    return plain::attention(q, k, v, options);
  const auto outputs = Node::apply(q, k, v, options);
  return {outputs[0], outputs[1]};
}

AttentionResult attention_forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(q, k, v, options);
  return run_forward(q, k, v, options);
}

void attention_forward_onto(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(q, k, v, options);
  const bool is_first = !so_far.out.defined();
  require(
      into.out.sizes() == q.sizes() &&
          (is_first || (so_far.out.sizes() == q.sizes() &&
                        into.lse.data_ptr() == so_far.lse.data_ptr())),
      kOp,
      "a result {} was to continue {} for q {}, in the same lse",
      describe(into.out),
      describe(so_far.out),
      describe(q));
  AttentionOptions wide = options;
  wide.out_dtype = into.out.scalar_type();
  if (attention_kernel_fits(q, k, wide) && (is_first || is_wide(so_far.out))) {
    run_attention_forward(into, so_far, q, k, v, options);
    return;
  }
  if (!is_first)
    wide.out_dtype = so_far.out.scalar_type();
  const AttentionResult part = plain::attention(q, k, v, wide);
  if (is_first) {
    Tensor(into.out).copy_(part.out);
    Tensor(into.lse).copy_(part.lse);
    return;
  }
  const AttentionResult merged{so_far.out.clone(), into.lse};
  plain::merge_attention(merged, part);
  Tensor(into.out).copy_(merged.out);
}

Tensor attention_delta(const Tensor& dout, const Tensor& out) {
  const torch::NoGradGuard no_grad;
  TORCH_CHECK(
      dout.sizes() == out.sizes(),
      "attention_delta: dout is ",
      dout.sizes(),
      ", out is ",
      out.sizes());
  if (!has_kernel(out) || dout.scalar_type() != out.scalar_type())
    return (dout.to(torch::kFloat) * out).sum(-1).transpose(1, 2).contiguous();
  const Tensor dense_dout = dense(dout);
  const Tensor dense_out = dense(out);
  const int64_t tokens = out.size(1);
  const Tensor delta = torch::empty(
      {out.size(0), out.size(2), tokens}, out.options().dtype(torch::kFloat));
  with_element_type(out, [&](auto type) {
    using T = decltype(type);
    const AttentionDelta<T> call{
        heads_of<const T>(dense_dout),
        heads_of<const T>(dense_out),
        delta.data_ptr<float>(),
        tokens,
        out.size(2),
        out.size(3)};
    constexpr int64_t kGrain = 64;
    at::parallel_for(
        0, out.size(0) * tokens, kGrain, [&](int64_t begin, int64_t end) {
          attention_delta(call, begin, end);
        });
  });
  return delta;
}

AttentionGradients attention_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(q, k, v, options);
  return run_backward(dout, q, k, v, lse, delta, options);
}

void attention_backward_into(
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options) {
  const torch::NoGradGuard no_grad;
  check_attention(q, k, v, options);
  const auto fits = [&](const Tensor& gradient, const Tensor& of) {
    require(
        gradient.sizes() == of.sizes(),
        kOp,
        "a gradient of {} was to be written into {}",
        describe(of),
        describe(gradient));
    return (gradient.scalar_type() == q.scalar_type() || is_wide(gradient)) &&
           (gradient.size(3) == 1 || gradient.stride(3) == 1);
  };
  const bool dq_fits = fits(into.dq, q);
  const bool dk_fits = fits(into.dk, k);
  const bool dv_fits = fits(into.dv, v);
  if (has_kernel(q) && q.numel() > 0 && k.numel() > 0 && dq_fits && dk_fits &&
      dv_fits) {
    run_attention_backward(into, dq_so_far, dout, q, k, v, lse, delta, options);
    return;
  }
  AttentionOptions wide = options;
  wide.out_dtype =
      q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const AttentionGradients result =
      plain::attention_backward(dout, q, k, v, lse, delta, wide);
  if (dq_so_far.values.defined())
    result.dq.narrow(1, dq_so_far.first_token, dq_so_far.values.size(1))
        .add_(dq_so_far.values);
  Tensor(into.dq).copy_(result.dq);
  Tensor(into.dk).copy_(result.dk);
  Tensor(into.dv).copy_(result.dv);
}

}  // namespace brigade::ops
