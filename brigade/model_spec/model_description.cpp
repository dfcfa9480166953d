#include "brigade/model_spec/model_description.h"

namespace brigade {

std::vector<NormDescription> LayerDescription::norms() const {
  std::vector<NormDescription> result{before_attention};
  if (after_attention)
    result.push_back(*after_attention);
  result.push_back(before_mlp);
  if (after_mlp)
    result.push_back(*after_mlp);
  return result;
}

namespace {

// Llama and what differs from it in biases, windows and head norms alone:
// Mistral, Qwen2 and Qwen3.
LayerDescription describe_llama_layer(const LlamaConfig& config) {
  const auto norm = [&](const char* name) {
    return NormDescription{.name = name, .eps = config.rms_norm_eps};
  };
  LayerDescription layer;
  layer.before_attention = norm("input_layernorm");
  layer.before_mlp = norm("post_attention_layernorm");
  layer.attention = {
      .num_heads = config.num_attention_heads,
      .num_key_value_heads = config.num_key_value_heads,
      .head_dim = config.head_dim,
      .scale = {},
      .sliding_window = config.sliding_window,
      .qkv_bias = config.qkv_bias,
      .o_bias = config.o_bias,
      .q_norm = {},
      .k_norm = {},
      .rotary = {config.rope_theta, config.rope_scaling}};
  if (config.qk_norm) {
    layer.attention.q_norm = norm("q_norm");
    layer.attention.k_norm = norm("k_norm");
  }
  layer.mlp = {.width = config.intermediate_size, .bias = config.mlp_bias};
  return layer;
}

}  // namespace

ModelDescription describe_model(const LlamaConfig& config) {
  ModelDescription model;
  model.vocab_size = config.vocab_size;
  model.hidden_size = config.hidden_size;
  model.layers.assign(
      static_cast<size_t>(config.num_hidden_layers),
      describe_llama_layer(config));
  model.final_norm = {.name = "norm", .eps = config.rms_norm_eps};
  model.has_tied_head = config.tie_word_embeddings;
  model.initial_std = config.initializer_range;
  return model;
}

}  // namespace brigade
