// parse_llama_config(): one small function per group of keys; every problem is
// collected, none throws. Keys follow transformers' configuration_llama.py,
// _mistral.py, _qwen2.py and _qwen3.py (v4), and v5's rope_parameters.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "brigade/base/checked_math.h"
#include "brigade/model_spec/llama_config.h"
#include "brigade/model_spec/llama_config_reader.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

using nlohmann::json;
using Reader = LlamaConfigReader;
constexpr std::array kArchitectures = {
    std::tuple{Architecture::kLlama, "LlamaForCausalLM", "llama"},
    std::tuple{Architecture::kMistral, "MistralForCausalLM", "mistral"},
    std::tuple{Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    std::tuple{Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
};
constexpr const char* kSupported =
    "supported are LlamaForCausalLM (llama), MistralForCausalLM (mistral), "
    "Qwen2ForCausalLM (qwen2) and Qwen3ForCausalLM (qwen3)";

using Bound = Reader::Bound;

std::optional<Architecture> architecture_named(std::string_view name) {
  for (const auto& [architecture, class_name, model_type] : kArchitectures) {
    if (name == class_name || name == model_type)
      return architecture;
  }
  return std::nullopt;
}

// From `architectures` and `model_type`; a config with neither is a Llama.
Architecture read_architecture(const Reader& reader) {
  std::optional<Architecture> by_class;
  if (const json* list = reader.find("architectures")) {
    const bool one_name =
        list->is_array() && list->size() == 1 && list->front().is_string();
    if (one_name)
      by_class = architecture_named(list->front().get<std::string>());
    if (!by_class) {
      reader.problem(
          "architectures",
          fmt::format(
              "{} is not supported; {}", Reader::show(*list), kSupported));
      return Architecture::kLlama;
    }
  }
  const auto type_name = reader.text("model_type");
  if (!type_name)
    return by_class.value_or(Architecture::kLlama);
  const auto by_type = architecture_named(*type_name);
  if (!by_type) {
    reader.problem(
        "model_type",
        fmt::format("\"{}\" is not supported; {}", *type_name, kSupported));
  } else if (by_class && *by_class != *by_type) {
    reader.problem(
        "model_type",
        fmt::format(
            "\"{}\" conflicts with architectures {}",
            *type_name,
            Reader::show(*reader.find("architectures"))));
  }
  return by_class ? *by_class : by_type.value_or(Architecture::kLlama);
}

// Where transformers' default for an absent key differs from the usual
// derivation, the file is ambiguous and must say which it means.
void check_ambiguous_default(
    const Reader& reader,
    const char* key,
    int64_t derived,
    std::optional<int64_t> transformers_default) {
  if (transformers_default && *transformers_default != derived) {
    reader.problem(
        key,
        fmt::format(
            "is missing; transformers would take {}, most files mean {}: write "
            "the one you mean",
            *transformers_default,
            derived));
  }
}

void read_heads(const Reader& reader, LlamaConfig& config) {
  const int64_t heads =
      reader.required_integer("num_attention_heads", 1, kMaxWidth);
  config.num_attention_heads = heads;
  const auto kv_heads = reader.integer("num_key_value_heads", 1, kMaxWidth);
  config.num_key_value_heads = kv_heads.value_or(heads);
  const auto head_dim = reader.integer("head_dim", 1, kMaxWidth);
  config.head_dim = head_dim.value_or(config.hidden_size / heads);
  if (!reader.is_sound(
          {"hidden_size",
           "num_attention_heads",
           "num_key_value_heads",
           "head_dim"}))
    return;
  if (!kv_heads && config.architecture == Architecture::kMistral)
    check_ambiguous_default(reader, "num_key_value_heads", heads, 8);
  if (heads % config.num_key_value_heads != 0) {
    reader.problem(
        "num_key_value_heads",
        fmt::format(
            "{} does not divide num_attention_heads {}",
            config.num_key_value_heads,
            heads));
  }
  if (!head_dim && config.hidden_size % heads != 0) {
    reader.problem(
        "num_attention_heads",
        fmt::format(
            "{} does not divide hidden_size {}; give head_dim or other sizes",
            heads,
            config.hidden_size));
  } else if (config.head_dim % 2 != 0 || config.head_dim == 0) {
    reader.problem(
        "head_dim",
        fmt::format(
            "{} is not an even positive number, which rotary embeddings need",
            config.head_dim));
  }
  if (!head_dim && config.architecture == Architecture::kQwen3)
    check_ambiguous_default(reader, "head_dim", config.head_dim, 128);
}

void read_shape(const Reader& reader, LlamaConfig& config) {
  config.vocab_size = reader.required_integer("vocab_size", 1, kMaxWidth);
  config.hidden_size = reader.required_integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size =
      reader.required_integer("intermediate_size", 1, kMaxWidth);
  config.num_hidden_layers =
      reader.required_integer("num_hidden_layers", 1, kMaxLayers);
  read_heads(reader, config);
  if (const auto value =
          reader.integer("max_position_embeddings", 1, kMaxPositions))
    config.max_position_embeddings = *value;
  if (const auto value = reader.number("rms_norm_eps", Bound::kAtLeast, 0.0))
    config.rms_norm_eps = *value;
  if (const auto value =
          reader.number("initializer_range", Bound::kAtLeast, 0.0))
    config.initializer_range = *value;
  config.tie_word_embeddings =
      reader.boolean("tie_word_embeddings").value_or(false);
  const auto activation = reader.text("hidden_act");
  if (activation && *activation != "silu" && *activation != "swish") {
    reader.problem(
        "hidden_act",
        fmt::format("\"{}\" is not supported; only \"silu\" is", *activation));
  }
}

void read_biases(const Reader& reader, LlamaConfig& config) {
  const bool attention = reader.boolean("attention_bias").value_or(false);
  const bool mlp = reader.boolean("mlp_bias").value_or(false);
  switch (config.architecture) {
    case Architecture::kLlama:
      config.qkv_bias = config.o_bias = attention;
      config.mlp_bias = mlp;
      return;
    case Architecture::kMistral:
      if (attention)
        reader.problem("attention_bias", "true, but Mistral has no biases");
      break;
    case Architecture::kQwen2:
      // transformers does not read the key: q, k and v always have a bias.
      config.qkv_bias = true;
      break;
    case Architecture::kQwen3:
      config.qkv_bias = config.o_bias = attention;
      config.qk_norm = true;
      break;
  }
  if (mlp)
    reader.problem("mlp_bias", "true, but only Llama's MLP can have biases");
}

void read_token_ids(const Reader& reader, LlamaConfig& config) {
  config.bos_token_id = reader.integer("bos_token_id", 0, kMaxWidth);
  const json* eos = reader.find("eos_token_id");
  if (eos == nullptr)
    return;
  const auto add = [&](const json& item) {
    const auto id = Reader::integer_in(item, 0, kMaxWidth);
    if (id) {
      config.eos_token_ids.push_back(*id);
    } else {
      reader.problem(
          "eos_token_id",
          fmt::format(
              "{} is neither a token id nor a list of them",
              Reader::show(*eos)));
    }
    return id.has_value();
  };
  if (!eos->is_array()) {
    add(*eos);
    return;
  }
  for (const json& item : *eos) {
    if (!add(item))
      return;
  }
}

// Keys of related architectures that change the maths, with the only value
// that leaves it as it is. Any other key is unknown to us and ignored, as
// transformers does.
void refuse_foreign_maths(const Reader& reader) {
  static const json kNeutral = {
      {"partial_rotary_factor", 1.0},
      {"rope_interleaved", false},
      {"attention_dropout", 0.0},
      {"hidden_dropout", 0.0},
      {"resid_pdrop", 0.0},
      {"embd_pdrop", 0.0},
      {"attn_logit_softcapping", nullptr},
      {"final_logit_softcapping", nullptr},
      {"query_pre_attn_scalar", nullptr},
      {"clip_qkv", nullptr},
      {"embedding_multiplier", 1.0},
      {"residual_multiplier", 1.0},
      {"attention_multiplier", nullptr},
      {"logits_scaling", 1.0},
      {"logit_scale", 1.0},
      {"scale_emb", 1.0},
      {"scale_depth", nullptr},
      {"num_experts", 0},
      {"num_local_experts", 0},
      {"n_routed_experts", 0},
      {"no_rope_layers", nullptr},
      {"alibi", false},
      {"parallel_attn", false},
      {"quantization_config", nullptr},
  };
  for (const auto& [key, neutral] : kNeutral.items()) {
    const json* value = reader.find(key.c_str());
    if (value != nullptr && *value != neutral) {
      reader.problem(
          key.c_str(),
          fmt::format(
              "{} is not supported; only {} is",
              Reader::show(*value),
              Reader::show(neutral)));
    }
  }
}

void check_dtype(const Reader& reader) {
  const auto old_key = reader.text("torch_dtype");
  const auto new_key = reader.text("dtype");
  if (old_key && new_key && *old_key != *new_key) {
    reader.problem(
        "dtype",
        fmt::format(
            "\"{}\" conflicts with torch_dtype \"{}\"", *new_key, *old_key));
  }
}

// The sizes are each in bounds here; their products need not be.
void check_total(const Reader& reader, const LlamaConfig& config) {
  const auto width = [](int64_t heads, int64_t head_dim) {
    return checked_multiply(
        static_cast<uint64_t>(heads), static_cast<uint64_t>(head_dim));
  };
  const auto q_width = width(config.num_attention_heads, config.head_dim);
  if (!q_width || *q_width > static_cast<uint64_t>(kMaxWidth)) {
    reader.problem(
        "head_dim",
        fmt::format(
            "{} times num_attention_heads {} is above {}",
            config.head_dim,
            config.num_attention_heads,
            kMaxWidth));
    return;
  }
  // Every weight matrix has at most kMaxWidth rows and columns, and a layer
  // has at most 8 matrices' worth of weights: 2^48 * 2^3 * 2^14 needs a check.
  LlamaConfig one_layer = config;
  one_layer.num_hidden_layers = 1;
  const auto total = checked_multiply(
      static_cast<uint64_t>(parameter_count(one_layer)),
      static_cast<uint64_t>(config.num_hidden_layers));
  if (!total || *total > std::numeric_limits<int64_t>::max() / 16) {
    reader.problem(
        "num_hidden_layers",
        fmt::format(
            "{} layers of {} weights are more than can be counted",
            config.num_hidden_layers,
            parameter_count(one_layer)));
  }
}

}  // namespace

LlamaConfig parse_llama_config(
    const json& json_config,
    const std::string& pointer,
    std::vector<std::string>& problems) {
  LlamaConfig config;
  if (!json_config.is_object()) {
    problems.push_back(fmt::format(
        "{}: {} is not an object with a model's config",
        pointer.empty() ? "/" : pointer,
        Reader::show(json_config)));
    return config;
  }
  const size_t problems_before = problems.size();
  const Reader reader(json_config, pointer, problems);
  config.architecture = read_architecture(reader);
  read_shape(reader, config);
  read_biases(reader, config);
  read_rope(reader, config);
  read_sliding_window(reader, config);
  read_token_ids(reader, config);
  refuse_foreign_maths(reader);
  check_dtype(reader);
  if (problems.size() == problems_before)
    check_total(reader, config);
  return config;
}

}  // namespace brigade
