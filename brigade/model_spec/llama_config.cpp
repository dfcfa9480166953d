#include "brigade/model_spec/llama_config.h"

#include <nlohmann/json.hpp>

#include "brigade/base/check.h"

namespace brigade {
namespace {

struct ArchitectureNames {
  const char* class_name;
  const char* model_type;
};

ArchitectureNames names_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return {"LlamaForCausalLM", "llama"};
    case Architecture::kMistral:
      return {"MistralForCausalLM", "mistral"};
    case Architecture::kQwen2:
      return {"Qwen2ForCausalLM", "qwen2"};
    case Architecture::kQwen3:
      return {"Qwen3ForCausalLM", "qwen3"};
  }
  BRIGADE_ASSERT(false, "architecture {}", static_cast<int>(architecture));
}

nlohmann::json rope_scaling_json(const LlamaConfig& config) {
  if (!config.rope_scaling)
    return nullptr;
  const Llama3RopeScaling& scaling = *config.rope_scaling;
  return {
      {"rope_type", "llama3"},
      {"factor", scaling.factor},
      {"low_freq_factor", scaling.low_freq_factor},
      {"high_freq_factor", scaling.high_freq_factor},
      {"original_max_position_embeddings",
       scaling.original_max_position_embeddings}};
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
    const LlamaConfig& config,
    const std::string& dtype) {
  const auto names = names_of(config.architecture);
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
      {"bos_token_id", nullptr},
      {"eos_token_id", eos_json(config.eos_token_ids)},
      {"torch_dtype", dtype},
      {"use_cache", true}};
  if (config.bos_token_id)
    json["bos_token_id"] = *config.bos_token_id;
  nlohmann::json window = nullptr;
  if (config.sliding_window)
    window = *config.sliding_window;
  switch (config.architecture) {
    case Architecture::kLlama:
      BRIGADE_ASSERT(
          config.qkv_bias == config.o_bias,
          "Llama's attention_bias is of q, k, v and o together");
      json["attention_bias"] = config.qkv_bias;
      json["mlp_bias"] = config.mlp_bias;
      break;
    case Architecture::kMistral:
      json["sliding_window"] = window;
      break;
    case Architecture::kQwen3:
      json["attention_bias"] = config.qkv_bias;
      [[fallthrough]];
    case Architecture::kQwen2:
      // The window applies to the layers from max_window_layers on.
      json["use_sliding_window"] = config.sliding_window.has_value();
      json["sliding_window"] = window;
      json["max_window_layers"] =
          config.sliding_window ? 0 : config.num_hidden_layers;
      break;
  }
  return json;
}

nlohmann::json to_hugging_face_json(
    const LlamaConfig& config,
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
    // Of these ours are only defaults.
    const bool is_theirs = key == "use_cache" || key == "attention_dropout";
    if (is_theirs || !json.contains(key))
      json[key] = value;
  }
  // One entry a layer, of which there may be another number now.
  const auto kinds = json.find("layer_types");
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  if (kinds != json.end() && kinds->is_array() && kinds->size() != layers)
    json.erase(kinds);
  return json;
}

}  // namespace brigade
