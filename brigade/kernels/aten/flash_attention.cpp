#include "brigade/kernels/aten/flash_attention.h"

#include <limits>

#include "brigade/base/check.h"
#include "brigade/kernels/aten/flash_plan.h"
#include "brigade/kernels/aten/wide.h"
#include "brigade/ops/libtorch_versions.h"

namespace brigade::ops {
namespace {

struct FlashOperands {
  Tensor q, k, v;  // [B, heads, T, D]
  double scale;
};

std::optional<FlashOperands> flash_operands(
    const KernelSet& kernels,
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const auto& [q, k, v] = operands;
  if (options.sliding_window || options.logit_soft_cap ||
      options.document_starts.defined() || q.numel() == 0 || k.numel() == 0)
    return std::nullopt;
  if (!has_flash_attention(
          q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)))
    return std::nullopt;
  return FlashOperands{
      flash_operand(kernels, q, options.query_rotary).transpose(1, 2),
      flash_operand(kernels, k, options.rotary_of_keys()).transpose(1, 2),
      flash_operand(kernels, v, std::nullopt).transpose(1, 2),
      options.scale_of(q)};
}

FlashOperands part(const FlashOperands& all, const FlashPiece& piece) {
  const auto [first_key, keys] = piece.keys;
  return {
      all.q.narrow(2, piece.queries.first, piece.queries.numel),
      all.k.narrow(2, first_key, keys),
      all.v.narrow(2, first_key, keys),
      all.scale};
}

// Whether one call of a GPU's kernel is all: its results need no merging.
bool is_whole_on_gpu(
    const AttentionOperands& operands,
    const std::vector<FlashPiece>& pieces) {
  return !operands.q.is_cpu() && pieces.size() == 1 &&
         pieces[0].queries == TokenSpan{0, operands.q.size(1)} &&
         pieces[0].keys == TokenSpan{0, operands.k.size(1)};
}

// Calls body(i) for each query head of those that share a key head; once, with
// no number, where the kernels know that heads share.
template <typename Body>
void for_shared_heads(const FlashOperands& of, const Body& body) {
  const int64_t group = of.q.size(1) / of.k.size(1);
  if (group == 1 || !of.q.is_cpu()) {
    body(std::optional<int64_t>());
    return;
  }
  for (int64_t i = 0; i < group; ++i)
    body(std::optional<int64_t>(i));
}

// [B, H, ..] to query head i of each key head, [B, Hkv, ..].
Tensor heads_of(const Tensor& x, int64_t key_heads, std::optional<int64_t> i) {
  return i ? x.unflatten(1, {key_heads, x.size(1) / key_heads}).select(2, *i)
           : x;
}

// Adds attention over other keys to the rows' sum, [B, H, T, D], and lse.
void merge(Tensor sum, Tensor lse, const FlashResult<Tensor>& other) {
  const auto dtype = sum.scalar_type();
  const Tensor other_lse = other.lse.to(dtype);
  const Tensor both = at::logaddexp(lse.to(dtype), other_lse);
  sum.lerp_(other.out.to(dtype), at::exp(other_lse - both).unsqueeze(-1));
  lse.copy_(both);
}

// What has the given dot product with each row of dout: all that a backward
// wants of the result.
Tensor with_delta(const Tensor& dout, const Tensor& delta) {
  // Relative to each row's largest, as squares of small gradients vanish.
  const double least = std::numeric_limits<float>::min();
  const Tensor top = dout.abs().amax(-1, /*keepdim=*/true).clamp_min(least);
  const Tensor row = dout / top;
  const Tensor squares =
      row.square().sum(-1, /*keepdim=*/true).clamp_min(1);  // 0: no gradient
  return row * (delta.unsqueeze(-1) / (top * squares));
}

}  // namespace

Tensor flash_operand(
    const KernelSet& kernels,
    const Tensor& x,
    const std::optional<RotaryTable>& table) {
  Tensor values = x;
  if (x.is_cpu()) {
    values = wide(table ? rotated(x, *table, RotaryDirection::kForward) : x);
  } else if (table) {
    values = at::empty(x.sizes(), x.options());
    kernels.rotate({.y = values, .x = x, .table = table});
  }
  return values.stride(-1) == 1 ? values : values.contiguous();
}

bool flash_forward(
    const KernelSet& kernels,
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options) {
  const auto all = flash_operands(kernels, operands, options);
  if (!all)
    return false;
  const auto pieces =
      plan_flash(options, operands.q.size(1), operands.k.size(1));
  if (!so_far.out.defined() && is_whole_on_gpu(operands, pieces)) {
    const auto result = flash_attention(
        all->q, all->k, all->v, pieces[0].is_diagonal, all->scale);
    BRIGADE_ASSERT(result, "flash attention was there a moment ago");
    Tensor(into.out).copy_(result->out.transpose(1, 2));
    Tensor(into.lse).copy_(result->lse);
    return true;
  }
  const bool in_place = into.out.scalar_type() == wide_dtype(operands.q);
  const Tensor sum =
      in_place ? into.out
               : at::empty(
                     into.out.sizes(),
                     into.out.options().dtype(wide_dtype(operands.q)));
  if (so_far.out.defined()) {
    sum.copy_(so_far.out);
  } else {
    sum.zero_();
    into.lse.fill_(-std::numeric_limits<double>::infinity());
  }
  const int64_t key_heads = all->k.size(1);
  for (const FlashPiece& piece : pieces) {
    const FlashOperands of = part(*all, piece);
    const auto [first, numel] = piece.queries;
    const Tensor sum_rows = sum.narrow(1, first, numel).transpose(1, 2);
    const Tensor lse_rows = into.lse.narrow(2, first, numel);
    for_shared_heads(of, [&](std::optional<int64_t> i) {
      const auto result = flash_attention(
          heads_of(of.q, key_heads, i),
          of.k,
          of.v,
          piece.is_diagonal,
          of.scale);
      BRIGADE_ASSERT(result, "flash attention was there a moment ago");
      merge(
          heads_of(sum_rows, key_heads, i),
          heads_of(lse_rows, key_heads, i),
          *result);
    });
  }
  if (!in_place)
    into.out.copy_(sum);
  return true;
}

bool is_narrow_backward(
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs) {
  const auto dtype = inputs.operands.q.scalar_type();
  return inputs.out.defined() && inputs.out.scalar_type() == dtype &&
         inputs.dout.scalar_type() == dtype && into.dq.scalar_type() == dtype &&
         into.dk.scalar_type() == dtype;
}

void write_flash_gradients(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionGradients& of_rotated,
    const AttentionOptions& options) {
  const auto rotate_back = [&](const Tensor& gradient,
                               const Tensor& rotated_one,
                               const std::optional<RotaryTable>& table) {
    kernels.rotate(
        {.y = gradient,
         .x = rotated_one,
         .table = table,
         .direction = RotaryDirection::kBackward});
  };
  rotate_back(into.dq, of_rotated.dq, options.query_rotary);
  rotate_back(into.dk, of_rotated.dk, options.rotary_of_keys());
  Tensor(into.dv).copy_(of_rotated.dv);
}

bool flash_backward_whole(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const auto& [q, k, v] = inputs.operands;
  if (q.is_cpu() || !is_narrow_backward(into, inputs))
    return false;
  const auto pieces = plan_flash(options, q.size(1), k.size(1));
  if (!is_whole_on_gpu(inputs.operands, pieces))
    return false;
  const auto all = flash_operands(kernels, inputs.operands, options);
  if (!all)
    return false;
  const auto gradients = flash_attention_backward(
      inputs.dout.transpose(1, 2),
      all->q,
      all->k,
      all->v,
      FlashResult<Tensor>{inputs.out.transpose(1, 2), inputs.lse},
      pieces[0].is_diagonal,
      all->scale);
  BRIGADE_ASSERT(gradients, "flash attention was there a moment ago");
  write_flash_gradients(
      kernels,
      into,
      {gradients->dq.transpose(1, 2),
       gradients->dk.transpose(1, 2),
       gradients->dv.transpose(1, 2)},
      options);
  return true;
}

std::optional<AttentionGradients> flash_backward(
    const KernelSet& kernels,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const auto all = flash_operands(kernels, inputs.operands, options);
  if (!all)
    return std::nullopt;
  const auto zeros = [](const Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(wide_dtype(like)));
  };
  const AttentionGradients sums{
      zeros(inputs.operands.q),
      zeros(inputs.operands.k),
      zeros(inputs.operands.v)};
  const Tensor wide_dout = wide(inputs.dout).transpose(1, 2);
  const auto dtype = all->q.scalar_type();
  const Tensor dout = wide_dout.to(dtype);
  const Tensor out = with_delta(wide_dout, inputs.delta).to(dtype);
  const Tensor lse = inputs.lse.to(wide_dtype(dtype));
  const int64_t key_heads = all->k.size(1);
  for (const FlashPiece& piece : plan_flash(
           options, inputs.operands.q.size(1), inputs.operands.k.size(1))) {
    const FlashOperands of = part(*all, piece);
    const auto [first, numel] = piece.queries;
    const auto rows = [&, first = first, numel = numel](
                          const Tensor& x, std::optional<int64_t> i) {
      return heads_of(x.narrow(2, first, numel), key_heads, i).contiguous();
    };
    for_shared_heads(
        of, [&, first = first, numel = numel](std::optional<int64_t> i) {
          const auto gradients = flash_attention_backward(
              rows(dout, i),
              heads_of(of.q, key_heads, i),
              of.k,
              of.v,
              FlashResult<Tensor>{rows(out, i), rows(lse, i)},
              piece.is_diagonal,
              of.scale);
          BRIGADE_ASSERT(gradients, "flash attention was there a moment ago");
          const auto add = [&](const Tensor& sum,
                               const TokenSpan& tokens,
                               const Tensor& gradient,
                               std::optional<int64_t> head) {
            heads_of(
                sum.narrow(1, tokens.first, tokens.numel).transpose(1, 2),
                key_heads,
                head)
                .add_(gradient);
          };
          add(sums.dq, {first, numel}, gradients->dq, i);
          add(sums.dk, piece.keys, gradients->dk, std::nullopt);
          add(sums.dv, piece.keys, gradients->dv, std::nullopt);
        });
  }
  return sums;
}

}  // namespace brigade::ops
