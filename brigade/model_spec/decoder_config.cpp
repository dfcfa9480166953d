#include "brigade/model_spec/decoder_config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/model_spec/decoder_config_reader.h"

namespace brigade {

const ArchitectureName& name_of(Architecture architecture) {
  for (const ArchitectureName& name : kArchitectures) {
    if (name.architecture == architecture)
      return name;
  }
  BRIGADE_ASSERT(false, "architecture {}", static_cast<int>(architecture));
}

namespace {

nlohmann::json rope_scaling_json(const DecoderConfig& config) {
  if (!config.rope_scaling)
    return nullptr;
  const RopeScaling& scaling = *config.rope_scaling;
  nlohmann::json json = {
      {"rope_type", to_string(scaling.type)}, {"factor", scaling.factor}};
  constexpr const char* kOriginal = "original_max_position_embeddings";
  switch (scaling.type) {
    case RopeType::kLinear:
    case RopeType::kDynamic:
      break;
    case RopeType::kLlama3:
      json["low_freq_factor"] = scaling.low_freq_factor;
      json["high_freq_factor"] = scaling.high_freq_factor;
      json[kOriginal] = scaling.original_max_position_embeddings;
      break;
    case RopeType::kYarn:
      json["beta_fast"] = scaling.beta_fast;
      json["beta_slow"] = scaling.beta_slow;
      json["truncate"] = scaling.truncates;
      json[kOriginal] = scaling.original_max_position_embeddings;
      for (const auto& [key, value] :
           {std::pair("attention_factor", scaling.attention_factor),
            std::pair("mscale", scaling.mscale),
            std::pair("mscale_all_dim", scaling.mscale_all_dim)}) {
        if (value)
          json[key] = *value;
      }
      break;
  }
  return json;
}

template <typename Value>
nlohmann::json number_or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json layer_types_json(const DecoderConfig& config) {
  std::vector<LayerType> types = config.layer_types;
  if (types.empty())
    types.assign(
        static_cast<size_t>(config.num_hidden_layers),
        config.sliding_window ? LayerType::kSlidingAttention
                              : LayerType::kFullAttention);
  nlohmann::json json = nlohmann::json::array();
  for (const LayerType type : types)
    json.push_back(to_string(type));
  return json;
}

void add_gemma(const DecoderConfig& config, nlohmann::json& json) {
  json.erase("hidden_act");
  json["hidden_activation"] = "gelu_pytorch_tanh";
  json["attention_bias"] = config.qkv_bias;
  json["sliding_window"] = number_or_null(config.sliding_window);
  json["layer_types"] = layer_types_json(config);
  // transformers takes no other number than an integer here.
  const double scalar = config.query_pre_attn_scalar.value_or(0);
  const auto whole = static_cast<int64_t>(scalar);
  json["query_pre_attn_scalar"] =
      config.query_pre_attn_scalar && static_cast<double>(whole) == scalar
          ? nlohmann::json(whole)
          : number_or_null(config.query_pre_attn_scalar);
  json["final_logit_softcapping"] =
      number_or_null(config.final_logit_softcapping);
  json["attn_logit_softcapping"] =
      number_or_null(config.attn_logit_softcapping);
  if (config.rope_local_base_freq)
    json["rope_local_base_freq"] = *config.rope_local_base_freq;
}

void add_glm(const DecoderConfig& config, nlohmann::json& json) {
  json["attention_bias"] = config.qkv_bias;
  json["use_qk_norm"] = config.qk_norm;
  json["partial_rotary_factor"] = config.partial_rotary_factor;
  // The layer for further tokens, which is not read.
  json["num_nextn_predict_layers"] = 0;
}

nlohmann::json eos_json(const std::vector<int64_t>& ids) {
  if (ids.empty())
    return nullptr;
  if (ids.size() == 1)
    return ids.front();
  return ids;
}

}  // namespace

nlohmann::json to_hugging_face_json(
    const DecoderConfig& config,
    const std::string& dtype) {
  const ArchitectureName& names = name_of(config.architecture);
  nlohmann::json json = {
      {"architectures", {names.class_name}},
      {"model_type", names.model_type},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", config.max_position_embeddings},
      {"initializer_range", config.initializer_range},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", rope_scaling_json(config)},
      {"attention_dropout", 0.0},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"bos_token_id", number_or_null(config.bos_token_id)},
      {"eos_token_id", eos_json(config.eos_token_ids)},
      {"torch_dtype", dtype},
      {"use_cache", true}};
  const nlohmann::json window = number_or_null(config.sliding_window);
  switch (config.architecture) {
    case Architecture::kLlama:
      BRIGADE_ASSERT(
          config.qkv_bias == config.o_bias,
          "Llama's attention_bias is of q, k, v and o together");
      json["attention_bias"] = config.qkv_bias;
      json["mlp_bias"] = config.mlp_bias;
      break;
    case Architecture::kMistral:
    case Architecture::kMixtral:
      json["sliding_window"] = window;
      break;
    case Architecture::kOlmoe:
      json["attention_bias"] = config.qkv_bias;
      break;
    case Architecture::kGlm4Moe:
      add_glm(config, json);
      break;
    case Architecture::kQwen3Moe:
    case Architecture::kDots1:
      json["attention_bias"] = config.qkv_bias;
      json["sliding_window"] = window;
      if (config.architecture == Architecture::kQwen3Moe)
        json["use_sliding_window"] = config.sliding_window.has_value();
      else
        json["layer_types"] = layer_types_json(config);
      break;
    case Architecture::kQwen3:
      json["attention_bias"] = config.qkv_bias;
      [[fallthrough]];
    case Architecture::kQwen2:
    case Architecture::kQwen2Moe:
      if (config.architecture == Architecture::kQwen2Moe) {
        json["qkv_bias"] = config.qkv_bias;
        json["layer_types"] = layer_types_json(config);
      }
      // Without layer_types the window applies to the layers from
      // max_window_layers on.
      json["use_sliding_window"] = config.sliding_window.has_value();
      json["sliding_window"] = window;
      json["max_window_layers"] =
          config.sliding_window ? 0 : config.num_hidden_layers;
      break;
    case Architecture::kGemma2:
    case Architecture::kGemma3:
      add_gemma(config, json);
      break;
  }
  if (config.experts)
    add_experts(config, json);
  return json;
}

nlohmann::json to_hugging_face_json(
    const DecoderConfig& config,
    const std::string& dtype,
    const nlohmann::json& source) {
  nlohmann::json json = to_hugging_face_json(config, dtype);
  if (!source.is_object())
    return json;
  // v5's name of torch_dtype.
  if (source.contains("dtype"))
    json["dtype"] = dtype;
  if (source.contains("dtype") && !source.contains("torch_dtype"))
    json.erase("torch_dtype");
  for (const auto& [key, value] : source.items()) {
    // Our values of these are only defaults.
    const bool is_theirs = key == "use_cache" || key == "attention_dropout";
    // transformers' other name of a key that is ours.
    const bool is_ours = key == "num_mtp_layers" &&
                         config.architecture == Architecture::kGlm4Moe;
    if (is_theirs || (!is_ours && !json.contains(key)))
      json[key] = value;
  }
  // One entry per layer, and the number of layers may have been overridden.
  if (json.contains("layer_types"))
    json["layer_types"] = layer_types_json(config);
  return json;
}

}  // namespace brigade
