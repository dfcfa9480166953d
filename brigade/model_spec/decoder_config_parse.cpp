// parse_decoder_config(): one small function per group of keys; every problem
// is collected, none throws. Keys follow transformers' configuration_llama.py,
// _mistral.py, _qwen2.py, _qwen3.py, _gemma2.py and _gemma3.py (v4), and v5's
// rope_parameters.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "brigade/base/check.h"
#include "brigade/base/checked_math.h"
#include "brigade/base/error.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/decoder_config_reader.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

using nlohmann::json;
using Reader = DecoderConfigReader;
using Bound = Reader::Bound;

// "supported are LlamaForCausalLM (llama), ... and ... (...)".
std::string supported_architectures() {
  std::vector<std::string> names;
  for (const ArchitectureName& name : kArchitectures)
    names.push_back(fmt::format("{} ({})", name.class_name, name.model_type));
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("supported are {} and {}", fmt::join(names, ", "), last);
}

std::optional<Architecture> architecture_named(std::string_view name) {
  for (const ArchitectureName& known : kArchitectures) {
    if (name == known.class_name || name == known.model_type)
      return known.architecture;
    // A model that was saved without its head.
    std::string_view stem = known.class_name;
    stem.remove_suffix(std::string_view("ForCausalLM").size());
    if (name.starts_with(stem) && (name.substr(stem.size()) == "Model" ||
                                   name.substr(stem.size()) == "TextModel"))
      return known.architecture;
  }
  return std::nullopt;
}

// From `architectures` and `model_type`; a config with neither is a Llama.
Architecture read_architecture(const Reader& reader) {
  std::optional<Architecture> by_class;
  const json* list = reader.find("architectures");
  // As transformers takes it: one name without its list.
  const json alone = json::array({list == nullptr ? json() : *list});
  if (list != nullptr && list->is_string())
    list = &alone;
  if (list != nullptr && !(list->is_array() && list->empty())) {
    // Several names are the classes that the same weights can be loaded as.
    const bool are_names =
        list->is_array() &&
        std::all_of(list->begin(), list->end(), [](const json& name) {
          return name.is_string();
        });
    for (size_t i = 0; are_names && i < list->size() && !by_class; ++i)
      by_class = architecture_named((*list)[i].get<std::string>());
    if (!by_class) {
      reader.problem(
          "architectures",
          fmt::format(
              "{} is not supported; {}",
              Reader::show(*list),
              supported_architectures()));
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
        fmt::format(
            "\"{}\" is not supported; {}",
            *type_name,
            supported_architectures()));
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

// transformers' values for absent keys, of its configuration_*.py.
struct AbsentKeys {
  Architecture architecture;
  int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;
  // Absent: as many as heads.
  std::optional<int64_t> num_key_value_heads = {};
};
constexpr AbsentKeys kAbsentKeys[] = {
    {Architecture::kLlama, 2048, 1e-6, 1e4},
    {Architecture::kMistral, 131072, 1e-6, 1e4, 8},
    {Architecture::kQwen2, 32768, 1e-6, 1e4, 32},
    {Architecture::kQwen3, 32768, 1e-6, 1e4, 32},
    {Architecture::kGemma2, 8192, 1e-6, 1e4, 4},
    {Architecture::kGemma3, 131072, 1e-6, 1e6, 4},
    {Architecture::kMixtral, 131072, 1e-5, 1e6, 8},
    {Architecture::kQwen2Moe, 32768, 1e-6, 1e4, 16},
    {Architecture::kQwen3Moe, 32768, 1e-6, 1e4, 4},
    {Architecture::kOlmoe, 4096, 1e-5, 1e4},
    {Architecture::kDots1, 2048, 1e-6, 1e4, 32},
    {Architecture::kGlm4Moe, 131072, 1e-5, 1e4, 8},
};
static_assert(std::size(kAbsentKeys) == std::size(kArchitectures));

const AbsentKeys& absent_keys_of(Architecture architecture) {
  for (const AbsentKeys& keys : kAbsentKeys) {
    if (keys.architecture == architecture)
      return keys;
  }
  BRIGADE_ASSERT(false, "architecture {}", static_cast<int>(architecture));
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

void read_heads(const Reader& reader, DecoderConfig& config) {
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
  // To transformers null means as many as heads.
  if (!kv_heads && !reader.holds_null("num_key_value_heads"))
    check_ambiguous_default(
        reader,
        "num_key_value_heads",
        heads,
        absent_keys_of(config.architecture).num_key_value_heads);
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
  if (!head_dim && is_gemma(config.architecture))
    check_ambiguous_default(reader, "head_dim", config.head_dim, 256);
}

void read_shape(const Reader& reader, DecoderConfig& config) {
  config.vocab_size = reader.required_integer("vocab_size", 1, kMaxWidth);
  config.hidden_size = reader.required_integer("hidden_size", 1, kMaxWidth);
  config.intermediate_size =
      reader.required_integer("intermediate_size", 1, kMaxWidth);
  config.num_hidden_layers =
      reader.required_integer("num_hidden_layers", 1, kMaxLayers);
  read_heads(reader, config);
  const AbsentKeys& absent = absent_keys_of(config.architecture);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, kMaxPositions)
          .value_or(absent.max_position_embeddings);
  config.rms_norm_eps = reader.number("rms_norm_eps", Bound::kAtLeast, 0.0)
                            .value_or(absent.rms_norm_eps);
  config.rope_theta = absent.rope_theta;  // read_rope() reads the key
  if (const auto value =
          reader.number("initializer_range", Bound::kAtLeast, 0.0))
    config.initializer_range = *value;
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings")
                                   .value_or(is_gemma(config.architecture));
}

// The architecture decides the activation; a file that names another one means
// another model.
void check_activation(const Reader& reader, const DecoderConfig& config) {
  const std::string_view expected =
      is_gemma(config.architecture) ? "gelu_pytorch_tanh" : "silu";
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const auto name = reader.text(key);
    const bool is_alias = name && *name == "swish" && expected == "silu";
    if (name && *name != expected && !is_alias) {
      reader.problem(
          key,
          fmt::format(
              "\"{}\" is not supported; only \"{}\" is", *name, expected));
    }
  }
}

void read_biases(const Reader& reader, DecoderConfig& config) {
  const bool attention = reader.boolean("attention_bias").value_or(false);
  const bool mlp = reader.boolean("mlp_bias").value_or(false);
  switch (config.architecture) {
    case Architecture::kLlama:
      config.qkv_bias = config.o_bias = attention;
      config.mlp_bias = mlp;
      return;
    case Architecture::kMistral:
    case Architecture::kMixtral:
      if (attention)
        reader.problem(
            "attention_bias",
            fmt::format(
                "true, but {} has no biases",
                name_of(config.architecture).class_name));
      break;
    case Architecture::kQwen2Moe:
      config.qkv_bias = reader.boolean("qkv_bias").value_or(true);
      break;
    case Architecture::kOlmoe:
      config.qk_norm_of_all_heads = true;
      [[fallthrough]];
    case Architecture::kQwen3Moe:
    case Architecture::kDots1:
      config.qkv_bias = config.o_bias = attention;
      config.qk_norm = true;
      break;
    case Architecture::kGlm4Moe:
      config.qkv_bias = attention;
      config.qk_norm = reader.boolean("use_qk_norm").value_or(false);
      break;
    case Architecture::kQwen2:
      // transformers does not read the key: q, k and v always have a bias.
      config.qkv_bias = true;
      break;
    case Architecture::kGemma2:
      config.qkv_bias = config.o_bias = attention;
      break;
    case Architecture::kQwen3:
    case Architecture::kGemma3:
      config.qkv_bias = config.o_bias = attention;
      config.qk_norm = true;
      break;
  }
  if (mlp)
    reader.problem("mlp_bias", "true, but only Llama's MLP can have biases");
}

// A key of Gemma whose absence has a default and whose null means none.
std::optional<double> read_gemma_number(
    const Reader& reader,
    const char* key,
    std::optional<double> transformers_default) {
  if (reader.holds_null(key))
    return std::nullopt;
  const auto value = reader.number(key, Bound::kAbove, 0.0);
  return value ? value : transformers_default;
}

void read_gemma(const Reader& reader, DecoderConfig& config) {
  const bool is_gemma2 = config.architecture == Architecture::kGemma2;
  const auto by_default = [&](double value) {
    return is_gemma2 ? std::optional(value) : std::nullopt;
  };
  config.query_pre_attn_scalar =
      reader.number("query_pre_attn_scalar", Bound::kAbove, 0.0)
          .value_or(256.0);
  config.final_logit_softcapping =
      read_gemma_number(reader, "final_logit_softcapping", by_default(30));
  config.attn_logit_softcapping =
      read_gemma_number(reader, "attn_logit_softcapping", by_default(50));
  if (!is_gemma2 && config.attn_logit_softcapping) {
    reader.problem(
        "attn_logit_softcapping",
        fmt::format(
            "{}, but Gemma 3's attention has no soft-cap",
            *config.attn_logit_softcapping));
  }
  if (reader.boolean("use_bidirectional_attention").value_or(false)) {
    reader.problem(
        "use_bidirectional_attention",
        "true is not supported; attention is causal");
  }
}

void read_token_ids(const Reader& reader, DecoderConfig& config) {
  // -1 stands for none.
  config.bos_token_id = reader.integer("bos_token_id", -1, kMaxWidth);
  if (config.bos_token_id == -1)
    config.bos_token_id.reset();
  const json* eos = reader.find("eos_token_id");
  if (eos == nullptr || *eos == -1)
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
void refuse_foreign_maths(const Reader& reader, const DecoderConfig& config) {
  static constexpr std::array kGemmas = {
      "attn_logit_softcapping",
      "final_logit_softcapping",
      "query_pre_attn_scalar"};
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
      {"is_causal", true},
      {"parallel_attn", false},
      {"quantization_config", nullptr},
  };
  for (const auto& [key, neutral] : kNeutral.items()) {
    if (is_gemma(config.architecture) &&
        std::find(kGemmas.begin(), kGemmas.end(), key) != kGemmas.end())
      continue;
    if (config.architecture == Architecture::kGlm4Moe &&
        key == "partial_rotary_factor")
      continue;
    // read_experts() has judged these.
    if (has_experts(config.architecture) &&
        key.find("experts") != std::string::npos)
      continue;
    const json* value = reader.find(key.c_str());
    // An empty dictionary or list says no more than null.
    const bool is_empty =
        value != nullptr && value->is_structured() && value->empty();
    if (value != nullptr && *value != neutral && !is_empty) {
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
void check_total(const Reader& reader, const DecoderConfig& config) {
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
  DecoderConfig one_layer = config;
  one_layer.num_hidden_layers = 1;
  if (config.experts) {
    const ExpertsConfig& experts = *config.experts;
    const auto weights = checked_multiply(
        static_cast<uint64_t>(experts.num_experts) * 3,
        static_cast<uint64_t>(experts.width * config.hidden_size));
    const auto all =
        weights ? checked_multiply(
                      *weights, static_cast<uint64_t>(config.num_hidden_layers))
                : std::nullopt;
    if (!all || *all > std::numeric_limits<int64_t>::max() / 16 ||
        experts.num_experts * config.num_hidden_layers > kMaxWidth) {
      reader.problem(
          "num_hidden_layers",
          fmt::format(
              "{} layers of {} experts are more than can be counted",
              config.num_hidden_layers,
              experts.num_experts));
      return;
    }
    one_layer.experts->first_k_dense_replace = 0;
    one_layer.experts->decoder_sparse_step = 1;
    one_layer.experts->mlp_only_layers.clear();
  }
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

DecoderConfig parse_decoder_config(
    const json& json_config,
    const std::string& pointer,
    std::vector<std::string>& problems) {
  DecoderConfig config;
  if (!json_config.is_object()) {
    const bool is_root = pointer.empty() || pointer.ends_with(": ");
    problems.push_back(fmt::format(
        "{}{}: {} is not an object with a model's config",
        pointer,
        is_root ? "/" : "",
        Reader::show(json_config)));
    return config;
  }
  const size_t problems_before = problems.size();
  const Reader reader(json_config, pointer, problems);
  config.architecture = read_architecture(reader);
  // A model of another kind does not lack the other keys.
  if (!reader.is_sound({"architectures", "model_type"}))
    return config;
  read_shape(reader, config);
  check_activation(reader, config);
  read_biases(reader, config);
  if (is_gemma(config.architecture))
    read_gemma(reader, config);
  if (has_experts(config.architecture))
    read_experts(reader, config);
  read_rope(reader, config);
  read_sliding_window(reader, config);
  read_token_ids(reader, config);
  refuse_foreign_maths(reader, config);
  check_dtype(reader);
  if (problems.size() == problems_before)
    check_total(reader, config);
  return config;
}

DecoderConfig require_decoder_config(
    const json& json_config,
    const std::string& pointer,
    const char* module) {
  std::vector<std::string> problems;
  DecoderConfig config = parse_decoder_config(json_config, pointer, problems);
  if (!problems.empty())
    throw DataError(fmt::format("[{}] {}", module, problems.front()));
  return config;
}

}  // namespace brigade
