// Attention by ATen calls: libtorch's flash kernels (flash_attention.h,
// ragged_flash.h), or some queries at a time: scores exist for these and all
// keys. Keys and values are not expanded: the query heads that share a key head
// are rows of one product.
#include <algorithm>
#include <limits>
#include <vector>

#include "brigade/kernels/aten/flash_attention.h"
#include "brigade/kernels/aten/ragged_flash.h"
#include "brigade/kernels/aten/wide.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

// Queries whose scores exist at once.
constexpr int64_t kQueryBlock = 512;
// The score of a hidden key, and the log-sum-exp of none.
constexpr double kNothing = -std::numeric_limits<double>::infinity();

Tensor positions_of(
    const std::vector<PositionRange>& ranges,
    int64_t numel,
    const torch::Device& device) {
  const auto type = torch::dtype(torch::kLong).device(device);
  if (ranges.empty())
    return at::arange(numel, type);
  std::vector<Tensor> parts;
  for (const PositionRange& range : ranges)
    parts.push_back(at::arange(range.begin, range.begin + range.numel, type));
  return at::cat(parts);
}

// [B, T, heads, D] to [B, Hkv, heads / Hkv * T, D]: the heads that share a key
// head as rows of one matrix.
Tensor by_key_head(const Tensor& x, int64_t key_heads) {
  const int64_t group = x.size(2) / key_heads;
  return x.unflatten(2, {key_heads, group})
      .permute({0, 2, 3, 1, 4})
      .reshape({x.size(0), key_heads, group * x.size(1), x.size(3)});
}

// And back.
Tensor by_token(const Tensor& x, int64_t tokens) {
  return x.unflatten(2, {x.size(2) / tokens, tokens})
      .permute({0, 3, 1, 2, 4})
      .flatten(2, 3);
}

// [B, H, T] to [B, Hkv, H / Hkv * T, 1], in the dtype of `like`.
Tensor column(const Tensor& x, const Tensor& like, int64_t key_heads) {
  return x.to(like.scalar_type())
      .unflatten(1, {key_heads, x.size(1) / key_heads})
      .flatten(2, 3)
      .unsqueeze(-1);
}

// A call's keys and values, wide and rotated, and its mask.
class Call {
 public:
  Call(const AttentionOperands& operands, const AttentionOptions& options)
      : options_(options),
        operands_(operands),
        scale_(options.scale_of(operands.q)),
        keys_(rotated_or_wide(operands.k, options.rotary_of_keys())
                  .transpose(1, 2)),
        values_(wide(operands.v).transpose(1, 2)),
        query_positions_(positions_of(
            options.query_positions,
            operands.q.size(1),
            operands.q.device())),
        key_positions_(positions_of(
            options.key_positions,
            operands.k.size(1),
            operands.q.device())) {}

  int64_t key_heads() const { return operands_.k.size(2); }
  double scale() const { return scale_; }
  const Tensor& keys() const { return keys_; }      // [B, Hkv, Tk, D]
  const Tensor& values() const { return values_; }  // [B, Hkv, Tk, D]

  // The queries [begin, begin + n), [B, Hkv, G * n, D].
  Tensor queries(int64_t begin, int64_t n) const {
    std::optional<RotaryTable> table;
    if (options_.query_rotary)
      table = {
          options_.query_rotary->cos.narrow(0, begin, n),
          options_.query_rotary->sin.narrow(0, begin, n)};
    return by_key_head(
        rotated_or_wide(operands_.q.narrow(1, begin, n), table), key_heads());
  }

  // Their scores [B, Hkv, G * n, Tk], capped, before the mask.
  Tensor scores(const Tensor& queries) const {
    Tensor scores = at::matmul(queries, keys_.transpose(-1, -2)).mul_(scale_);
    if (const auto cap = options_.logit_soft_cap)
      scores.div_(*cap).tanh_().mul_(*cap);
    return scores;
  }

  // Keeps the part of the gradient of those scores that the cap lets through.
  void go_back_through_cap(Tensor dscores, const Tensor& scores) const {
    if (const auto cap = options_.logit_soft_cap)
      dscores.mul_(1 - (scores / *cap).square());
  }

  // -infinity where the mask hides a key.
  Tensor masked(const Tensor& scores, int64_t begin, int64_t n) const {
    const Tensor query = query_positions_.narrow(0, begin, n).view({1, n, 1});
    const Tensor key = key_positions_.view({1, 1, -1});
    Tensor hidden = at::zeros(
        {1, n, key.size(2)},
        torch::dtype(torch::kBool).device(scores.device()));
    if (options_.causal)
      hidden = hidden | (key > query);
    if (options_.sliding_window)
      hidden = hidden | (key <= query - *options_.sliding_window);
    if (options_.document_starts.defined())
      hidden =
          hidden |
          (key < options_.document_starts.narrow(1, begin, n).unsqueeze(-1));
    const int64_t group = scores.size(2) / n;
    return scores.unflatten(2, {group, n})
        .masked_fill(hidden.unsqueeze(1).unsqueeze(1), kNothing)
        .flatten(2, 3);
  }

 private:
  static Tensor rotated_or_wide(
      const Tensor& x,
      const std::optional<RotaryTable>& table) {
    return table ? rotated(x, *table, RotaryDirection::kForward) : wide(x);
  }

  const AttentionOptions& options_;
  const AttentionOperands& operands_;
  double scale_;
  Tensor keys_;
  Tensor values_;
  Tensor query_positions_;
  Tensor key_positions_;
};

// x, and 0 where a row sees nothing.
Tensor finite(const Tensor& x) {
  return x.masked_fill(x == kNothing, 0);
}

// Over the last dim, kept. at::logsumexp() has no meta function in libtorch
// 1.13.
Tensor log_sum_exp(const Tensor& scores) {
  if (scores.size(-1) == 0)
    return at::full_like(scores.sum(-1, /*keepdim=*/true), kNothing);
  const Tensor top = finite(scores.amax(-1, /*keepdim=*/true));
  return at::exp(scores - top).sum(-1, /*keepdim=*/true).log_().add_(top);
}

// exp(scores - lse); a row that sees nothing has a lse of -infinity.
Tensor probabilities(const Tensor& scores, const Tensor& lse) {
  return at::exp(scores - finite(lse));
}

template <typename Body>
void for_query_blocks(int64_t tokens, const Body& body) {
  for (int64_t begin = 0; begin < tokens; begin += kQueryBlock)
    body(begin, std::min(kQueryBlock, tokens - begin));
}

Tensor rotated_back(const Tensor& x, const std::optional<RotaryTable>& table) {
  return table ? rotated(x, *table, RotaryDirection::kBackward) : x;
}

// As flash_backward().
AttentionGradients gradients_by_blocks(
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options) {
  const Call call(inputs.operands, options);
  const int64_t key_heads = call.key_heads();
  Tensor dk = at::zeros_like(call.keys());
  Tensor dv = at::zeros_like(call.values());
  const Tensor dq = at::empty(
      inputs.operands.q.sizes(),
      inputs.operands.q.options().dtype(wide_dtype(inputs.operands.q)));
  for_query_blocks(dq.size(1), [&](int64_t begin, int64_t n) {
    const Tensor queries = call.queries(begin, n);
    const Tensor scores = call.scores(queries);
    const Tensor p = probabilities(
        call.masked(scores, begin, n),
        column(inputs.lse.narrow(2, begin, n), scores, key_heads));
    const Tensor dout =
        by_key_head(wide(inputs.dout.narrow(1, begin, n)), key_heads)
            .to(scores.scalar_type());
    dv.add_(at::matmul(p.transpose(-1, -2), dout));
    const Tensor delta =
        column(inputs.delta.narrow(2, begin, n), scores, key_heads);
    Tensor dscores =
        at::matmul(dout, call.values().transpose(-1, -2)).sub_(delta).mul_(p);
    call.go_back_through_cap(dscores, scores);
    dscores.mul_(call.scale());
    dq.narrow(1, begin, n).copy_(by_token(at::matmul(dscores, call.keys()), n));
    dk.add_(at::matmul(dscores.transpose(-1, -2), queries));
  });
  return {dq, dk.transpose(1, 2), dv.transpose(1, 2)};
}

}  // namespace

void KernelSet::attention(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options) const {
  if (flash_forward(*this, into, so_far, operands, options) ||
      (!so_far.out.defined() &&
       ragged_flash_forward(*this, into, operands, options)))
    return;
  const Call call(operands, options);
  for_query_blocks(operands.q.size(1), [&](int64_t begin, int64_t n) {
    const Tensor scores =
        call.masked(call.scores(call.queries(begin, n)), begin, n);
    const Tensor lse = log_sum_exp(scores);
    Tensor out =
        by_token(at::matmul(probabilities(scores, lse), call.values()), n);
    // [B, Hkv, G * n, 1] to [B, H, n]
    Tensor rows =
        lse.squeeze(-1).unflatten(2, {lse.size(2) / n, n}).flatten(1, 2);
    if (so_far.out.defined()) {
      const Tensor before =
          so_far.lse.narrow(2, begin, n).to(rows.scalar_type());
      const Tensor both = at::logaddexp(before, rows);
      // 0 where neither sees a key.
      const Tensor share = at::exp(rows - finite(both));
      out = so_far.out.narrow(1, begin, n)
                .lerp(out, share.transpose(1, 2).unsqueeze(-1));
      rows = both;
    }
    into.out.narrow(1, begin, n).copy_(out);
    into.lse.narrow(2, begin, n).copy_(rows);
  });
}

void KernelSet::attention_backward(
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const AttentionBackwardInputs& given,
    const AttentionOptions& options) const {
  if (!dq_so_far.values.defined() &&
      (flash_backward_whole(*this, into, given, options) ||
       ragged_flash_backward(*this, into, given, options)))
    return;
  AttentionBackwardInputs inputs = given;
  inputs.delta = delta_of(given, options.kernels);
  const auto flash = flash_backward(*this, inputs, options);
  const AttentionGradients sums =
      flash ? *flash : gradients_by_blocks(inputs, options);
  const Tensor dq = rotated_back(sums.dq, options.query_rotary);
  if (const Tensor& values = dq_so_far.values; values.defined())
    dq.narrow(1, dq_so_far.first_token, values.size(1)).add_(values);
  Tensor(into.dq).copy_(dq);
  Tensor(into.dk).copy_(rotated_back(sums.dk, options.rotary_of_keys()));
  Tensor(into.dv).copy_(sums.dv);
}

Tensor KernelSet::attention_delta(const Tensor& dout, const Tensor& out) const {
  return (wide(dout) * wide(out)).sum(-1).transpose(1, 2).contiguous();
}

void KernelSet::add_partial_gradient(
    Tensor sum,
    const Tensor& other,
    const std::optional<RotaryTable>& table) const {
  sum.copy_(wide(sum) + rotated_back(wide(other), table));
}

}  // namespace brigade::ops
