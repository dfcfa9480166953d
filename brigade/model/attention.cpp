#include "brigade/model/attention.h"

#include <utility>

#include "brigade/context_parallel/ring_attention.h"
#include "brigade/model/recompute.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/rotary.h"

namespace brigade {

SelfAttention::SelfAttention(ModelContextPtr context)
    : context_(std::move(context)) {
  const LlamaConfig& config = context_->config;
  const int tp = context_->tensor_parallel.size();
  using Bias = LinearWeights::Bias;
  const Bias qkv_bias = config.qkv_bias ? Bias::kYes : Bias::kNone;
  const Bias o_bias = config.o_bias ? Bias::kYes : Bias::kNone;
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.num_attention_heads / tp * config.head_dim;
  const int64_t kv_width =
      kv_heads_per_rank(config.num_key_value_heads, tp) * config.head_dim;
  const auto linear = [&](const char* name, int64_t out, int64_t in, Bias b) {
    return register_module(
        name, std::make_shared<LinearWeights>(out, in, b, context_->dtype));
  };
  // Side by side, so that the data parallel's flat buffer keeps them so and
  // they make one product.
  q_proj_ = linear("q_proj", width, hidden, qkv_bias);
  k_proj_ = linear("k_proj", kv_width, hidden, qkv_bias);
  v_proj_ = linear("v_proj", kv_width, hidden, qkv_bias);
  o_proj_ = linear("o_proj", hidden, width, o_bias);
  if (config.qk_norm) {
    const auto norm = [&](const char* name) {
      return register_module(
          name, std::make_shared<NormWeight>(config.head_dim, context_->dtype));
    };
    q_norm_ = norm("q_norm");
    k_norm_ = norm("k_norm");
  }
}

SelfAttention::Heads SelfAttention::project(
    const torch::Tensor& x,
    int64_t rows) {
  const auto projected = column_parallel_linear(
      context_->tensor_parallel,
      x,
      {q_proj_->weight, k_proj_->weight, v_proj_->weight},
      {q_proj_->bias, k_proj_->bias, v_proj_->bias},
      context_->linear_options());
  const auto heads = [&](const torch::Tensor& flat) {
    const int64_t head_dim = context_->config.head_dim;
    return flat.view(
        {rows, flat.size(0) / rows, flat.size(1) / head_dim, head_dim});
  };
  Heads result{heads(projected[0]), heads(projected[1]), heads(projected[2])};
  if (context_->config.qk_norm) {
    const double eps = context_->config.rms_norm_eps;
    const auto mode = context_->op_options();
    result.q = ops::rms_norm(result.q, q_norm_->weight, eps, mode);
    result.k = ops::rms_norm(result.k, k_norm_->weight, eps, mode);
  }
  return result;
}

torch::Tensor SelfAttention::project_output(const torch::Tensor& out) {
  return row_parallel_linear(
      context_->tensor_parallel,
      out.reshape({out.size(0) * out.size(1), out.size(2) * out.size(3)}),
      o_proj_->weight,
      o_proj_->bias,
      context_->linear_options());
}

torch::Tensor SelfAttention::attend(
    const Heads& heads,
    const AttentionInputs& inputs) {
  RingAttentionOptions options;
  options.attention.kernels = context_->kernels;
  options.attention.sliding_window = context_->config.sliding_window;
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
  return project_output(attend(project(x, inputs.rows), inputs));
}

torch::Tensor SelfAttention::forward_cached(
    const torch::Tensor& x,
    const AttentionInputs& inputs,
    KeyValueCache& cache) {
  const Heads heads = project(x, inputs.rows);
  const auto [q, k] =
      ops::rotary(heads.q, heads.k, inputs.rotary, context_->kernels);
  const int64_t past = cache.keys.defined() ? cache.keys.size(1) : 0;
  cache.keys = past > 0 ? torch::cat({cache.keys, k}, 1) : k;
  cache.values =
      past > 0 ? torch::cat({cache.values, heads.v}, 1) : heads.v.contiguous();
  ops::AttentionOptions mask;
  mask.kernels = context_->kernels;
  mask.sliding_window = context_->config.sliding_window;
  mask.query_positions = {{past, q.size(1)}};
  mask.key_positions = {{0, cache.keys.size(1)}};
  return project_output(ops::attention(q, cache.keys, cache.values, mask).out);
}

}  // namespace brigade
