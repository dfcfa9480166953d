#include "brigade/model_spec/model_description.h"

#include <cmath>

#include "brigade/base/check.h"

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
// Mistral, Qwen2, Qwen3, and those with experts.
LayerDescription describe_llama_layer(const DecoderConfig& config) {
  const auto norm = [&](const char* name) {
    return NormDescription{.name = name, .eps = config.rms_norm_eps};
  };
  LayerDescription layer;
  layer.before_attention = norm("input_layernorm");
  layer.before_mlp = norm("post_attention_layernorm");
  AttentionDescription& attention = layer.attention;
  attention.num_heads = config.num_attention_heads;
  attention.num_key_value_heads = config.num_key_value_heads;
  attention.head_dim = config.head_dim;
  attention.sliding_window = config.sliding_window;
  attention.qkv_bias = config.qkv_bias;
  attention.o_bias = config.o_bias;
  if (config.qk_norm) {
    attention.q_norm = norm("q_norm");
    attention.k_norm = norm("k_norm");
    attention.norms_all_heads = config.qk_norm_of_all_heads;
  }
  attention.rotary.theta = config.rope_theta;
  attention.rotary.scaling = config.rope_scaling;
  attention.rotary.share = config.partial_rotary_factor;
  layer.mlp.width = config.intermediate_size;
  layer.mlp.bias = config.mlp_bias;
  return layer;
}

// Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, dots1 and GLM-4-MoE.
ExpertsDescription describe_experts(const DecoderConfig& config) {
  const ExpertsConfig& experts = *config.experts;
  const bool is_mixtral = config.architecture == Architecture::kMixtral;
  const bool is_deepseek = has_deepseek_router(config.architecture);
  ExpertsDescription result;
  result.count = experts.num_experts;
  result.per_token = experts.num_experts_per_tok;
  result.expert.width = experts.width;
  result.router = {
      .score = is_deepseek ? RouterScore::kSigmoid : RouterScore::kSoftmax,
      .normalises = experts.norm_topk_prob,
      .scale = experts.routed_scaling_factor,
      .has_bias = is_deepseek,
      .groups = experts.n_group,
      .chosen_groups = experts.topk_group};
  if (experts.shared_width > 0)
    result.shared = SharedExpertDescription{
        .name = is_deepseek ? "shared_experts" : "shared_expert",
        .mlp = {.width = experts.shared_width},
        .has_gate = !is_deepseek};
  if (is_mixtral) {
    result.block = "block_sparse_moe";
    result.gate = "w1";
    result.up = "w3";
    result.down = "w2";
  }
  return result;
}

// Gemma 2 and 3: four norms, each by 1 + w, and two kinds of layers.
LayerDescription describe_gemma_layer(
    const DecoderConfig& config,
    LayerType type) {
  const auto norm = [&](const char* name) {
    return NormDescription{
        .name = name,
        .eps = config.rms_norm_eps,
        .scale = NormScale::kOnePlusWeight};
  };
  LayerDescription layer = describe_llama_layer(config);
  layer.before_attention = norm("input_layernorm");
  layer.after_attention = norm("post_attention_layernorm");
  layer.before_mlp = norm("pre_feedforward_layernorm");
  layer.after_mlp = norm("post_feedforward_layernorm");
  layer.mlp.activation = Activation::kGeluTanh;
  AttentionDescription& attention = layer.attention;
  if (config.qk_norm) {
    attention.q_norm = norm("q_norm");
    attention.k_norm = norm("k_norm");
  }
  if (config.query_pre_attn_scalar)
    attention.scale = 1 / std::sqrt(*config.query_pre_attn_scalar);
  attention.logit_soft_cap = config.attn_logit_softcapping;
  if (type == LayerType::kFullAttention) {
    attention.sliding_window.reset();
  } else if (config.rope_local_base_freq) {
    attention.rotary = {.theta = *config.rope_local_base_freq};
  }
  return layer;
}

ModelDescription describe_ends(const DecoderConfig& config) {
  ModelDescription model;
  model.vocab_size = config.vocab_size;
  model.hidden_size = config.hidden_size;
  model.final_norm = {.name = "norm", .eps = config.rms_norm_eps};
  model.has_tied_head = config.tie_word_embeddings;
  model.initial_std = config.initializer_range;
  return model;
}

ModelDescription describe_llama(const DecoderConfig& config) {
  ModelDescription model = describe_ends(config);
  model.layers.assign(
      static_cast<size_t>(config.num_hidden_layers),
      describe_llama_layer(config));
  if (!config.experts)
    return model;
  const ExpertsDescription experts = describe_experts(config);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (config.experts->is_sparse(static_cast<int64_t>(i)))
      model.layers[i].experts = experts;
  }
  return model;
}

ModelDescription describe_gemma(const DecoderConfig& config) {
  ModelDescription model = describe_ends(config);
  for (size_t i = 0; i < static_cast<size_t>(config.num_hidden_layers); ++i) {
    const LayerType type = i < config.layer_types.size()
                               ? config.layer_types[i]
                               : LayerType::kFullAttention;
    model.layers.push_back(describe_gemma_layer(config, type));
  }
  model.final_norm.scale = NormScale::kOnePlusWeight;
  model.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  model.final_logit_soft_cap = config.final_logit_softcapping;
  return model;
}

}  // namespace

ModelDescription describe_model(const DecoderConfig& config) {
  switch (config.architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kMixtral:
    case Architecture::kQwen2Moe:
    case Architecture::kQwen3Moe:
    case Architecture::kOlmoe:
    case Architecture::kDots1:
    case Architecture::kGlm4Moe:
      return describe_llama(config);
    case Architecture::kGemma2:
    case Architecture::kGemma3:
      return describe_gemma(config);
  }
  BRIGADE_ASSERT(
      false, "architecture {}", static_cast<int>(config.architecture));
}

}  // namespace brigade
