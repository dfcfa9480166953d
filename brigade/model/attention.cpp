#include "brigade/model/attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/context_parallel/ring_attention.h"
#include "brigade/model/recompute.h"
#include "brigade/ops/rotary.h"

namespace brigade {

namespace {

// Appends to [B, S, H, D] along dim 1. Behind what is there lies room, as its
// batch stride says; where that ends, twice as much is taken, so that no token
// copies all those before it. Copies of a cache share that room: what follows
// their common tokens belongs to the one that was appended to last.
void append(torch::Tensor& seen, const torch::Tensor& more) {
  const int64_t past = seen.defined() ? seen.size(1) : 0;
  std::vector<int64_t> sizes = more.sizes().vec();
  sizes[1] += past;
  if (past > 0 && seen.stride(0) / seen.stride(1) >= sizes[1]) {
    seen = seen.as_strided(sizes, seen.strides());
  } else {
    std::vector<int64_t> with_room = sizes;
    with_room[1] = std::max(sizes[1], 2 * past);
    const torch::Tensor grown =
        torch::empty(with_room, more.options()).narrow(1, 0, sizes[1]);
    if (past > 0)
      grown.narrow(1, 0, past).copy_(seen);
    seen = grown;
  }
  seen.narrow(1, past, more.size(1)).copy_(more);
}

}  // namespace

SelfAttention::SelfAttention(
    ModelContextPtr context,
    const AttentionDescription& description,
    const ParameterSource& source)
    : context_(std::move(context)),
      description_(description),
      qkv_(source.make_group(*this, "qkv_proj")),
      o_proj_(register_module("o_proj", source.make("o_proj"))) {
  BRIGADE_ASSERT(qkv_.size() == 3, "q, k and v are {} linears", qkv_.size());
  const auto norm = [&](const NormDescription& of_heads) {
    return Norm(*this, of_heads, source, context_->op_options());
  };
  if (description.q_norm)
    q_norm_ = norm(*description.q_norm);
  if (description.k_norm)
    k_norm_ = norm(*description.k_norm);
}

SelfAttention::Heads SelfAttention::project(
    const torch::Tensor& x,
    const AttentionInputs& inputs) {
  const auto projected = qkv_.column_parallel(*context_, x);
  const auto heads = [&, rows = inputs.rows](const torch::Tensor& flat) {
    const int64_t head_dim = description_.head_dim;
    return flat.view(
        {rows, flat.size(0) / rows, flat.size(1) / head_dim, head_dim});
  };
  Heads result{heads(projected[0]), heads(projected[1]), heads(projected[2])};
  const auto normed = [&](const std::optional<Norm>& norm,
                          const torch::Tensor& of_heads) {
    if (!norm)
      return of_heads;
    return description_.norms_all_heads
               ? norm->forward(
                         of_heads.flatten(2), context_->tensor_parallel.group)
                     .view_as(of_heads)
               : norm->forward(of_heads);
  };
  result.q = in_rotary_order(normed(q_norm_, result.q));
  result.k = in_rotary_order(normed(k_norm_, result.k));
  return result;
}

// Where a head's first r dims alone are rotated, dim i is paired with i + r / 2
// and not, as the tables have it, with i + D / 2. Scores do not depend on the
// order of the dims.
torch::Tensor SelfAttention::in_rotary_order(const torch::Tensor& heads) const {
  const int64_t dims = description_.head_dim;
  const auto rotated = static_cast<int64_t>(
      description_.rotary.share * static_cast<double>(dims));
  if (rotated == dims)
    return heads;
  const auto half_rotated = rotated / 2;
  const auto half_rest = (dims - rotated) / 2;
  const auto parts = heads.split_with_sizes(
      {half_rotated, half_rotated, half_rest, half_rest}, -1);
  return torch::cat({parts[0], parts[2], parts[1], parts[3]}, -1);
}

torch::Tensor SelfAttention::project_output(const torch::Tensor& out) {
  return o_proj_->row_parallel(
      *context_,
      out.reshape({out.size(0) * out.size(1), out.size(2) * out.size(3)}));
}

ops::AttentionOptions SelfAttention::attention_options() const {
  ops::AttentionOptions options;
  options.kernels = context_->kernels;
  options.scale = description_.scale;
  options.logit_soft_cap = description_.logit_soft_cap;
  options.sliding_window = description_.sliding_window;
  return options;
}

torch::Tensor SelfAttention::attend(
    const Heads& heads,
    const AttentionInputs& inputs) {
  RingAttentionOptions options;
  options.attention = attention_options();
  options.attention.document_starts = inputs.document_starts;
  options.attention.query_rotary = inputs.rotary;
  const auto run = [ring = context_->context_parallel,
                    options](const std::vector<torch::Tensor>& qkv) {
    return ring_attention(ring, qkv[0], qkv[1], qkv[2], options);
  };
  const std::vector<torch::Tensor> qkv{heads.q, heads.k, heads.v};
  return context_->recompute == Recompute::kSelective ? recompute(run, qkv)
                                                      : run(qkv);
}

torch::Tensor SelfAttention::forward(
    const torch::Tensor& x,
    const AttentionInputs& inputs) {
  return project_output(attend(project(x, inputs), inputs));
}

torch::Tensor SelfAttention::forward_cached(
    const torch::Tensor& x,
    const AttentionInputs& inputs,
    KeyValueCache& cache) {
  const Heads heads = project(x, inputs);
  const auto [q, k] =
      ops::rotary(heads.q, heads.k, inputs.rotary, context_->kernels);
  const int64_t past = cache.keys.defined() ? cache.keys.size(1) : 0;
  append(cache.keys, k);
  append(cache.values, heads.v);
  ops::AttentionOptions options = attention_options();
  options.query_positions = {{past, q.size(1)}};
  options.key_positions = {{0, cache.keys.size(1)}};
  return project_output(
      ops::attention(q, cache.keys, cache.values, options).out);
}

}  // namespace brigade
