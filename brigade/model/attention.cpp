#include "brigade/model/attention.h"

#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/rotary.h"

namespace brigade {

SelfAttention::SelfAttention(const ModelContext& context) : context_(context) {
  const LlamaConfig& config = context.config;
  using Bias = LinearWeights::Bias;
  const Bias qkv_bias = config.qkv_bias ? Bias::kYes : Bias::kNone;
  const Bias o_bias = config.o_bias ? Bias::kYes : Bias::kNone;
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const auto linear = [&](const char* name, int64_t out, int64_t in, Bias b) {
    return register_module(
        name, std::make_shared<LinearWeights>(out, in, b, context.dtype));
  };
  // Side by side, so that the data parallel's flat buffer keeps them so and
  // linear_group() makes one product of them.
  q_proj_ = linear("q_proj", width, hidden, qkv_bias);
  k_proj_ = linear("k_proj", kv_width, hidden, qkv_bias);
  v_proj_ = linear("v_proj", kv_width, hidden, qkv_bias);
  o_proj_ = linear("o_proj", hidden, width, o_bias);
  if (config.qk_norm) {
    q_norm_ = register_module(
        "q_norm", std::make_shared<NormWeight>(config.head_dim, context.dtype));
    k_norm_ = register_module(
        "k_norm", std::make_shared<NormWeight>(config.head_dim, context.dtype));
  }
}

SelfAttention::Heads SelfAttention::project(const torch::Tensor& x) {
  const auto projected = ops::linear_group(
      x,
      {q_proj_->weight, k_proj_->weight, v_proj_->weight},
      {q_proj_->bias, k_proj_->bias, v_proj_->bias},
      context_.weight_grad);
  const auto heads = [&](const torch::Tensor& flat) {
    return flat.unflatten(-1, {-1, context_.config.head_dim});
  };
  Heads result{heads(projected[0]), heads(projected[1]), heads(projected[2])};
  if (context_.config.qk_norm) {
    const double eps = context_.config.rms_norm_eps;
    result.q =
        ops::rms_norm(result.q, q_norm_->weight, eps, context_.weight_grad);
    result.k =
        ops::rms_norm(result.k, k_norm_->weight, eps, context_.weight_grad);
  }
  return result;
}

torch::Tensor SelfAttention::project_output(const torch::Tensor& out) {
  return ops::linear(
      out.flatten(-2), o_proj_->weight, o_proj_->bias, context_.weight_grad);
}

torch::Tensor SelfAttention::forward(
    const torch::Tensor& x,
    const ops::AttentionOptions& mask) {
  const Heads heads = project(x);
  return project_output(ops::attention(heads.q, heads.k, heads.v, mask).out);
}

torch::Tensor SelfAttention::forward_cached(
    const torch::Tensor& x,
    const ops::RotaryTable& rotary,
    KeyValueCache& cache) {
  const Heads heads = project(x);
  const auto [q, k] = ops::rotary(heads.q, heads.k, rotary);
  const int64_t past = cache.keys.defined() ? cache.keys.size(1) : 0;
  cache.keys = past > 0 ? torch::cat({cache.keys, k}, 1) : k;
  cache.values =
      past > 0 ? torch::cat({cache.values, heads.v}, 1) : heads.v.contiguous();
  ops::AttentionOptions mask;
  mask.sliding_window = context_.config.sliding_window;
  mask.query_positions = {{past, x.size(1)}};
  mask.key_positions = {{0, cache.keys.size(1)}};
  return project_output(ops::attention(q, cache.keys, cache.values, mask).out);
}

}  // namespace brigade
