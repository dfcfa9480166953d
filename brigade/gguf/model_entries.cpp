#include "brigade/gguf/model_entries.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/model_spec/rotary_frequencies.h"

namespace brigade {
namespace {

// The last of every so many layers sees all; 1: all do, 0: none does.
// std::nullopt for another order.
std::optional<uint32_t> sliding_period(const DecoderConfig& config) {
  const auto layers = static_cast<uint32_t>(config.layer_types.size());
  const auto fits = [&](uint32_t period) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const bool slides = period == 0 || layer % period < period - 1;
      if (slides != (config.layer_types[layer] == LayerType::kSlidingAttention))
        return false;
    }
    return true;
  };
  // What llama.cpp takes without the entry goes first.
  const uint32_t usual = config.architecture == Architecture::kGemma2 ? 2 : 6;
  if (fits(usual))
    return usual;
  for (uint32_t period = 0; period <= layers; ++period) {
    if (fits(period))
      return period;
  }
  return std::nullopt;
}

void add_gemma_reasons(
    const DecoderConfig& config,
    std::vector<std::string>& reasons) {
  const double scalar = config.query_pre_attn_scalar.value_or(0);
  if (scalar != gemma_attention_scalar(config)) {
    reasons.push_back(fmt::format(
        "query_pre_attn_scalar {}: llama.cpp takes {} for {} layers",
        scalar,
        gemma_attention_scalar(config),
        config.num_hidden_layers));
  }
  if (config.qkv_bias || config.o_bias)
    reasons.emplace_back("attention_bias: llama.cpp's Gemma has none");
  if (!config.sliding_window)
    reasons.emplace_back("layer_types: llama.cpp's Gemma has sliding layers");
  if (!sliding_period(config)) {
    reasons.emplace_back(
        "layer_types: the sliding layers do not follow a period, of which the "
        "last layer sees all");
  }
  if (config.architecture == Architecture::kGemma3) {
    if (config.final_logit_softcapping) {
      reasons.push_back(fmt::format(
          "final_logit_softcapping {}: llama.cpp's Gemma 3 has none",
          *config.final_logit_softcapping));
    }
    return;
  }
  if (!config.final_logit_softcapping)
    reasons.emplace_back(
        "final_logit_softcapping null: llama.cpp's Gemma 2 always caps");
  if (!config.attn_logit_softcapping)
    reasons.emplace_back(
        "attn_logit_softcapping null: llama.cpp's Gemma 2 always caps");
  if (!config.tie_word_embeddings)
    reasons.emplace_back(
        "tie_word_embeddings false: llama.cpp's Gemma 2 has no head of its "
        "own");
}

// Entries say of DeepSeek-V3's router what the graphs of other architectures
// fix.
void add_deepseek_reasons(
    const DecoderConfig& config,
    std::vector<std::string>& reasons) {
  const char* const name = gguf_architecture(config.architecture);
  if (config.experts->shared_width == 0)
    reasons.push_back(
        fmt::format("n_shared_experts 0: llama.cpp's {} has some", name));
  if (config.architecture != Architecture::kDots1)
    return;
  if (config.qkv_bias)
    reasons.push_back(
        fmt::format("attention_bias: llama.cpp's {} has none", name));
  if (config.num_key_value_heads != config.num_attention_heads)
    reasons.push_back(fmt::format(
        "num_key_value_heads {}: llama.cpp's {} has as many as heads, {}",
        config.num_key_value_heads,
        name,
        config.num_attention_heads));
  if (config.tie_word_embeddings)
    reasons.push_back(fmt::format(
        "tie_word_embeddings true: llama.cpp's {} needs a head of its own",
        name));
}

void add_expert_reasons(
    const DecoderConfig& config,
    std::vector<std::string>& reasons) {
  const ExpertsConfig& experts = *config.experts;
  if (has_deepseek_router(config.architecture))
    return add_deepseek_reasons(config, reasons);
  if (experts.norm_topk_prob != gguf_normalises(config.architecture))
    reasons.push_back(fmt::format(
        "norm_topk_prob {}: llama.cpp's {} has it {}",
        experts.norm_topk_prob,
        gguf_architecture(config.architecture),
        !experts.norm_topk_prob));
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (experts.is_sparse(layer))
      continue;
    reasons.push_back(fmt::format(
        "layer {} without experts: llama.cpp's {} has them in all",
        layer,
        gguf_architecture(config.architecture)));
    break;
  }
  const char* const name = gguf_architecture(config.architecture);
  if (config.qkv_bias && config.architecture != Architecture::kQwen2Moe)
    reasons.push_back(
        fmt::format("attention_bias: llama.cpp's {} has none", name));
  const bool is_olmoe = config.architecture == Architecture::kOlmoe;
  if (config.tie_word_embeddings &&
      (is_olmoe || config.architecture == Architecture::kQwen2Moe))
    reasons.push_back(fmt::format(
        "tie_word_embeddings true: llama.cpp's {} needs a head of its own",
        name));
  if (is_olmoe && config.num_key_value_heads != config.num_attention_heads)
    reasons.push_back(fmt::format(
        "num_key_value_heads {}: llama.cpp's olmoe has a norm of {} heads' "
        "keys",
        config.num_key_value_heads,
        config.num_attention_heads));
}

void add_rope_reasons(
    const DecoderConfig& config,
    std::vector<std::string>& reasons) {
  if (!config.rope_scaling)
    return;
  const RopeScaling& scaling = *config.rope_scaling;
  const auto refuse = [&](const std::string& why) {
    reasons.push_back(
        fmt::format("rope_type \"{}\": {}", to_string(scaling.type), why));
  };
  const std::string architecture = gguf_architecture(config.architecture);
  switch (scaling.type) {
    case RopeType::kLinear:
      break;
    case RopeType::kDynamic:
      refuse("llama.cpp's frequencies do not depend on the length");
      break;
    case RopeType::kLlama3:
      if (architecture != "llama")
        refuse(fmt::format("llama.cpp has it for llama, not {}", architecture));
      break;
    case RopeType::kYarn:
      if (config.architecture == Architecture::kGemma3)
        refuse("llama.cpp would scale Gemma 3's sliding layers too");
      if (!scaling.truncates)
        refuse("\"truncate\" false is not in llama.cpp");
      break;
  }
}

// Entries whose keys begin with the architecture's name.
struct ModelEntries {
  std::string prefix;
  std::vector<GgufEntry> list = {};

  void add(const std::string& key, GgufValue value) {
    list.push_back({prefix + key, std::move(value)});
  }
  void u32(const std::string& key, int64_t value) {
    add(key, static_cast<uint32_t>(value));
  }
  void f32(const std::string& key, double value) {
    add(key, static_cast<float>(value));
  }
};

void add_rope_scaling(const DecoderConfig& config, ModelEntries& entries) {
  if (!config.rope_scaling || config.rope_scaling->type == RopeType::kLlama3)
    return;
  const RopeScaling& scaling = *config.rope_scaling;
  entries.add("rope.scaling.type", std::string(to_string(scaling.type)));
  entries.f32("rope.scaling.factor", scaling.factor);
  if (scaling.type != RopeType::kYarn)
    return;
  entries.u32(
      "rope.scaling.original_context_length",
      scaling.original_max_position_embeddings);
  entries.f32("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  entries.f32("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  const double magnitude =
      rotary_frequencies(
          {.theta = config.rope_theta, .scaling = scaling}, config.head_dim, 1)
          .magnitude;
  // llama.cpp multiplies it to the usual one.
  const double usual = usual_yarn_magnitude(scaling.factor);
  if (magnitude != usual)
    entries.f32("rope.scaling.attn_factor", magnitude / usual);
}

void add_deepseek_router(const ExpertsConfig& experts, ModelEntries& entries) {
  entries.u32("leading_dense_block_count", experts.first_k_dense_replace);
  entries.u32("expert_shared_count", experts.shared_width / experts.width);
  entries.f32("expert_weights_scale", experts.routed_scaling_factor);
  entries.add("expert_weights_norm", experts.norm_topk_prob);
  entries.u32("expert_gating_func", kGgufSigmoid);
  // llama.cpp takes no choice that is all of them.
  if (experts.topk_group == experts.n_group)
    return;
  entries.u32("expert_group_count", experts.n_group);
  entries.u32("expert_group_used_count", experts.topk_group);
}

void add_experts(const DecoderConfig& config, ModelEntries& entries) {
  const ExpertsConfig& experts = *config.experts;
  const bool is_deepseek = has_deepseek_router(config.architecture);
  entries.u32("expert_count", experts.num_experts);
  entries.u32("expert_used_count", experts.num_experts_per_tok);
  if (is_deepseek || config.architecture == Architecture::kQwen2Moe ||
      config.architecture == Architecture::kQwen3Moe)
    entries.u32("expert_feed_forward_length", experts.width);
  if (is_deepseek)
    add_deepseek_router(experts, entries);
  else if (experts.shared_width > 0)
    entries.u32("expert_shared_feed_forward_length", experts.shared_width);
}

void add_gemma(const DecoderConfig& config, ModelEntries& entries) {
  const auto period = sliding_period(config);
  BRIGADE_ASSERT(period, "a period of the layers");
  const uint32_t usual = config.architecture == Architecture::kGemma2 ? 2 : 6;
  if (config.sliding_window)
    entries.u32("attention.sliding_window", *config.sliding_window);
  if (*period != usual)
    entries.u32("attention.sliding_window_pattern", *period);
  if (config.rope_local_base_freq)
    entries.f32("rope.freq_base_swa", *config.rope_local_base_freq);
  if (config.attn_logit_softcapping)
    entries.f32("attn_logit_softcapping", *config.attn_logit_softcapping);
  if (config.final_logit_softcapping)
    entries.f32("final_logit_softcapping", *config.final_logit_softcapping);
}

}  // namespace

const char* gguf_architecture(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kMixtral:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kGemma2:
      return "gemma2";
    case Architecture::kGemma3:
      return "gemma3";
    case Architecture::kQwen2Moe:
      return "qwen2moe";
    case Architecture::kQwen3Moe:
      return "qwen3moe";
    case Architecture::kOlmoe:
      return "olmoe";
    case Architecture::kDots1:
      return "dots1";
    case Architecture::kGlm4Moe:
      return "glm4moe";
  }
  BRIGADE_ASSERT(false, "architecture {}", static_cast<int>(architecture));
}

// It goes by the number of layers: of the 27B models by the hidden size.
double gemma_attention_scalar(const DecoderConfig& config) {
  const int64_t layers_of_27b =
      config.architecture == Architecture::kGemma2 ? 46 : 62;
  return static_cast<double>(
      config.num_hidden_layers == layers_of_27b
          ? config.hidden_size / config.num_attention_heads
          : config.head_dim);
}

bool gguf_normalises(Architecture architecture) {
  return architecture == Architecture::kMixtral ||
         architecture == Architecture::kQwen3Moe;
}

double usual_yarn_magnitude(double factor) {
  return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
}

std::vector<std::string> reasons_against_gguf(const DecoderConfig& config) {
  std::vector<std::string> reasons;
  if (config.experts)
    add_expert_reasons(config, reasons);
  if (is_gemma(config.architecture)) {
    add_gemma_reasons(config, reasons);
  } else if (
      config.sliding_window &&
      *config.sliding_window < config.max_position_embeddings) {
    reasons.push_back(fmt::format(
        "sliding_window {}: llama.cpp's {} sees all {} positions",
        *config.sliding_window,
        gguf_architecture(config.architecture),
        config.max_position_embeddings));
  }
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const bool has_usual_heads = config.architecture == Architecture::kQwen2 ||
                               config.architecture == Architecture::kQwen2Moe ||
                               config.architecture == Architecture::kOlmoe;
  if (has_usual_heads && q_width != config.hidden_size) {
    reasons.push_back(fmt::format(
        "head_dim {}: llama.cpp's {} needs hidden_size {} / {} heads",
        config.head_dim,
        gguf_architecture(config.architecture),
        config.hidden_size,
        config.num_attention_heads));
  }
  if (config.architecture == Architecture::kQwen3 && config.qkv_bias)
    reasons.emplace_back("attention_bias: llama.cpp's qwen3 has none");
  add_rope_reasons(config, reasons);
  return reasons;
}

std::vector<GgufEntry> model_entries(const DecoderConfig& config) {
  ModelEntries entries{
      std::string(gguf_architecture(config.architecture)) + "."};
  entries.u32("vocab_size", config.vocab_size);
  entries.u32("context_length", config.max_position_embeddings);
  entries.u32("embedding_length", config.hidden_size);
  entries.u32("block_count", config.num_hidden_layers);
  entries.u32("feed_forward_length", config.intermediate_size);
  entries.u32("attention.head_count", config.num_attention_heads);
  entries.u32("attention.head_count_kv", config.num_key_value_heads);
  entries.u32("attention.key_length", config.head_dim);
  entries.u32("attention.value_length", config.head_dim);
  entries.f32("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  entries.u32(
      "rope.dimension_count",
      static_cast<int64_t>(
          config.partial_rotary_factor * static_cast<double>(config.head_dim)));
  entries.f32("rope.freq_base", config.rope_theta);
  add_rope_scaling(config, entries);
  if (is_gemma(config.architecture))
    add_gemma(config, entries);
  if (config.experts)
    add_experts(config, entries);
  return std::move(entries.list);
}

std::vector<float> rope_divisors(const DecoderConfig& config) {
  if (!config.rope_scaling || config.rope_scaling->type != RopeType::kLlama3)
    return {};
  const RotaryDescription scaled{
      .theta = config.rope_theta, .scaling = config.rope_scaling};
  const RotaryDescription plain{.theta = config.rope_theta};
  const auto divided = rotary_frequencies(scaled, config.head_dim, 1).values;
  const auto whole = rotary_frequencies(plain, config.head_dim, 1).values;
  std::vector<float> divisors;
  for (size_t i = 0; i < whole.size(); ++i)
    divisors.push_back(static_cast<float>(whole[i] / divided[i]));
  return divisors;
}

}  // namespace brigade
