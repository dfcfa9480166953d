// Hugging Face's config.json of a model as a struct. What its values mean for
// the computation is said by describe_model() (model_description.h).
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/model_spec/experts_config.h"
#include "brigade/options/choice.h"

namespace brigade {

// The published architectures whose config.json is read.
enum class Architecture {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kGemma2,
  kGemma3,  // text alone
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kOlmoe,
  // DeepSeek-V3's router beside ordinary attention.
  kDots1,
  kGlm4Moe,
};

// How a config.json names an architecture.
struct ArchitectureName {
  Architecture architecture;
  const char* class_name;  // in `architectures`
  const char* model_type;
};
inline constexpr ArchitectureName kArchitectures[] = {
    {Architecture::kLlama, "LlamaForCausalLM", "llama"},
    {Architecture::kMistral, "MistralForCausalLM", "mistral"},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
    {Architecture::kGemma2, "Gemma2ForCausalLM", "gemma2"},
    {Architecture::kGemma3, "Gemma3ForCausalLM", "gemma3_text"},
    {Architecture::kMixtral, "MixtralForCausalLM", "mixtral"},
    {Architecture::kQwen2Moe, "Qwen2MoeForCausalLM", "qwen2_moe"},
    {Architecture::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
    {Architecture::kOlmoe, "OlmoeForCausalLM", "olmoe"},
    {Architecture::kDots1, "Dots1ForCausalLM", "dots1"},
    {Architecture::kGlm4Moe, "Glm4MoeForCausalLM", "glm4_moe"},
};
// Its entry in kArchitectures.
const ArchitectureName& name_of(Architecture architecture);

// Whether its router is DeepSeek-V3's: sigmoid scores, and a bias that only
// chooses.
constexpr bool has_deepseek_router(Architecture architecture) {
  return architecture == Architecture::kDots1 ||
         architecture == Architecture::kGlm4Moe;
}

// Whether its models are mixtures of experts.
constexpr bool has_experts(Architecture architecture) {
  return architecture == Architecture::kMixtral ||
         architecture == Architecture::kQwen2Moe ||
         architecture == Architecture::kQwen3Moe ||
         architecture == Architecture::kOlmoe ||
         has_deepseek_router(architecture);
}

// Gemma 2 or 3.
constexpr bool is_gemma(Architecture architecture) {
  return architecture == Architecture::kGemma2 ||
         architecture == Architecture::kGemma3;
}

// What a layer's queries see.
enum class LayerType {
  kFullAttention,
  kSlidingAttention,  // the sliding window alone
};
// As layer_types spells them.
template <>
inline constexpr std::array kChoices<LayerType>{
    Choice{LayerType::kFullAttention, "full_attention"},
    Choice{LayerType::kSlidingAttention, "sliding_attention"}};

// rope_type: how frequencies are scaled.
enum class RopeType { kLinear, kDynamic, kYarn, kLlama3 };
// As rope_type spells them.
template <>
inline constexpr std::array kChoices<RopeType>{
    Choice{RopeType::kLinear, "linear"},
    Choice{RopeType::kDynamic, "dynamic"},
    Choice{RopeType::kYarn, "yarn"},
    Choice{RopeType::kLlama3, "llama3"}};

// rope_scaling (transformers v5: rope_parameters) of another type than
// "default". rotary_frequencies.h says what each does.
struct RopeScaling {
  RopeType type = RopeType::kLlama3;
  double factor = 1.0;
  // What was trained before scaling; of "linear" it is not read.
  int64_t original_max_position_embeddings = 8192;
  // With "llama3".
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // With "yarn".
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  bool truncates = true;  // to whole dims
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool operator==(const RopeScaling&) const = default;
};

struct DecoderConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 32000;
  int64_t hidden_size = 0;        // C
  int64_t intermediate_size = 0;  // F
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;  // H
  int64_t num_key_value_heads = 0;  // Hkv; divides H
  int64_t head_dim = 0;             // D; absent in the file: C / H
  int64_t max_position_embeddings = 2048;
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;          // share of a head's dims
  std::optional<RopeScaling> rope_scaling;     // of full attention
  std::optional<double> rope_local_base_freq;  // theta of sliding layers
  std::optional<int64_t>
      sliding_window;  // tokens a query sees, itself included
  // One per layer; empty: the window, where there is one, is every layer's.
  std::vector<LayerType> layer_types;
  // Scores are divided by its root; absent: by that of head_dim (Gemma).
  std::optional<double> query_pre_attn_scalar;
  std::optional<double> attn_logit_softcapping;
  std::optional<double> final_logit_softcapping;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // attention_bias, or true by architecture (Qwen2)
  bool o_bias = false;    // attention_bias of Llama
  bool mlp_bias = false;
  bool qk_norm = false;  // Qwen3, Gemma 3: RMSNorm over each head of q and k
  bool qk_norm_of_all_heads = false;     // OLMoE: over all heads together
  std::optional<ExpertsConfig> experts;  // absent: every layer has one MLP
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  bool operator==(const DecoderConfig&) const = default;
};

// Reads a Hugging Face config (keys of transformers v4 and v5). Every problem
// found is added to `problems` as "<pointer>/key: ..." ; the result is usable
// only when none was added.
DecoderConfig parse_decoder_config(
    const nlohmann::json& json,
    const std::string& pointer,
    std::vector<std::string>& problems);
// Throws DataError with the first problem, "[`module`] <pointer>/key: ...".
DecoderConfig require_decoder_config(
    const nlohmann::json& json,
    const std::string& pointer,
    const char* module);

// The config.json that transformers loads (v4 keys).
nlohmann::json to_hugging_face_json(
    const DecoderConfig& config,
    const std::string& dtype);

// The same on top of `source`, the config.json that the model was made from:
// what means nothing to training (pad_token_id, _name_or_path, ...) is kept. A
// `source` that is null or no object counts as empty.
nlohmann::json to_hugging_face_json(
    const DecoderConfig& config,
    const std::string& dtype,
    const nlohmann::json& source);

}  // namespace brigade
