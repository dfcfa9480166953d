#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "brigade/model_spec/decoder_config_reader.h"

namespace brigade {
namespace {

using nlohmann::json;
using Reader = DecoderConfigReader;
using Bound = Reader::Bound;

void read_llama3(const Reader& rope, RopeScaling& scaling) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (rope.find(key) == nullptr)
      rope.problem(key, "is missing; rope_type \"llama3\" needs it");
  }
  scaling.low_freq_factor = rope.number("low_freq_factor", Bound::kAbove, 0.0)
                                .value_or(scaling.low_freq_factor);
  scaling.high_freq_factor = rope.number("high_freq_factor", Bound::kAbove, 0.0)
                                 .value_or(scaling.high_freq_factor);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.problem(
        "high_freq_factor",
        fmt::format(
            "{} is not above low_freq_factor {}",
            scaling.high_freq_factor,
            scaling.low_freq_factor));
  }
}

void read_yarn(const Reader& rope, RopeScaling& scaling) {
  scaling.beta_fast =
      rope.number("beta_fast", Bound::kAbove, 0.0).value_or(scaling.beta_fast);
  scaling.beta_slow =
      rope.number("beta_slow", Bound::kAbove, 0.0).value_or(scaling.beta_slow);
  // transformers takes a null for false here.
  scaling.truncates =
      rope.boolean("truncate").value_or(!rope.holds_null("truncate"));
  scaling.attention_factor =
      rope.number("attention_factor", Bound::kAbove, 0.0);
  scaling.mscale = rope.number("mscale", Bound::kAtLeast, 0.0);
  scaling.mscale_all_dim = rope.number("mscale_all_dim", Bound::kAtLeast, 0.0);
}

// One of v4's rope_scaling and v5's rope_parameters: the same dictionary, but
// that v5's holds rope_theta too. `whole` is the config around it.
std::optional<RopeScaling> read_rope_dictionary(
    const Reader& rope,
    const Reader& whole,
    const DecoderConfig& config) {
  const auto type = rope.text("rope_type");
  const auto old_type = rope.text("type");
  if (type && old_type && *type != *old_type) {
    rope.problem(
        "type",
        fmt::format(
            "\"{}\" conflicts with rope_type \"{}\"", *old_type, *type));
  }
  const std::string name = type.value_or(old_type.value_or("default"));
  const auto fraction = rope.number("partial_rotary_factor", Bound::kAbove, 0);
  if (fraction && *fraction != 1.0 &&
      config.architecture != Architecture::kGlm4Moe) {
    rope.problem(
        "partial_rotary_factor",
        fmt::format("{} is not supported; only 1.0 is", *fraction));
  }
  if (name == "default")
    return std::nullopt;
  const auto known = find_choice<RopeType>(name);
  if (!known) {
    rope.problem(
        type || !old_type ? "rope_type" : "type",
        fmt::format(
            "\"{}\" is not supported; \"default\", \"linear\", \"dynamic\", "
            "\"yarn\" and \"llama3\" are",
            name));
    return std::nullopt;
  }
  RopeScaling scaling{
      .type = *known,
      .original_max_position_embeddings = config.max_position_embeddings};
  // As in transformers: a key of the whole config goes before the dictionary's.
  constexpr const char* kOriginal = "original_max_position_embeddings";
  if (scaling.type == RopeType::kYarn || scaling.type == RopeType::kLlama3) {
    for (const Reader* place : {&rope, &whole}) {
      if (const auto original = place->integer(kOriginal, 1, kMaxPositions))
        scaling.original_max_position_embeddings = *original;
    }
  }
  if (const auto factor = rope.number("factor", Bound::kAtLeast, 1.0)) {
    scaling.factor = *factor;
  } else if (scaling.type == RopeType::kYarn) {
    scaling.factor =
        static_cast<double>(config.max_position_embeddings) /
        static_cast<double>(scaling.original_max_position_embeddings);
  } else if (rope.find("factor") == nullptr) {
    rope.problem(
        "factor", fmt::format("is missing; rope_type \"{}\" needs it", name));
  }
  if (scaling.type == RopeType::kLlama3)
    read_llama3(rope, scaling);
  if (scaling.type == RopeType::kYarn)
    read_yarn(rope, scaling);
  return scaling;
}

// nullptr where it is absent, null or empty, which mean the same.
const json* dictionary_at(const Reader& reader, const char* key) {
  const json* dictionary = reader.object(key);
  return dictionary == nullptr || dictionary->empty() ? nullptr : dictionary;
}

// Gemma 3: sliding layers have a theta of their own, and v5's rope_parameters
// hold a dictionary per type of layer.
void read_gemma3_rope(const Reader& reader, DecoderConfig& config) {
  config.rope_theta = reader.number("rope_theta", Bound::kAbove, 0.0)
                          .value_or(config.rope_theta);
  config.rope_local_base_freq =
      reader.number("rope_local_base_freq", Bound::kAbove, 0.0).value_or(1e4);
  const json* given = dictionary_at(reader, "rope_scaling");
  if (given != nullptr)
    config.rope_scaling = read_rope_dictionary(
        reader.inside("rope_scaling", *given), reader, config);
  const json* parameters = dictionary_at(reader, "rope_parameters");
  if (parameters == nullptr)
    return;
  const Reader by_type = reader.inside("rope_parameters", *parameters);
  constexpr const char* kFull = to_string(LayerType::kFullAttention);
  constexpr const char* kSliding = to_string(LayerType::kSlidingAttention);
  if (const json* full = by_type.object(kFull)) {
    const Reader rope = by_type.inside(kFull, *full);
    const auto scaling = read_rope_dictionary(rope, reader, config);
    if (given != nullptr && scaling != config.rope_scaling)
      by_type.problem(kFull, "conflicts with rope_scaling");
    config.rope_scaling = scaling;
    config.rope_theta = rope.number("rope_theta", Bound::kAbove, 0.0)
                            .value_or(config.rope_theta);
  }
  if (const json* sliding = by_type.object(kSliding)) {
    const Reader rope = by_type.inside(kSliding, *sliding);
    if (read_rope_dictionary(rope, reader, config))
      rope.problem("rope_type", "only \"default\" is supported here");
    config.rope_local_base_freq = rope.number("rope_theta", Bound::kAbove, 0.0)
                                      .value_or(*config.rope_local_base_freq);
  }
}

// GLM: the first dims of each head alone are rotated.
void check_partial_rotary(const Reader& reader, const DecoderConfig& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  const double dims =
      config.partial_rotary_factor * static_cast<double>(config.head_dim);
  const auto rotated = static_cast<int64_t>(dims);
  if (config.partial_rotary_factor > 1 || rotated < 2 || rotated % 2 != 0)
    reader.problem(
        kKey,
        fmt::format(
            "{} of head_dim {} are {} dims; they must be an even number from "
            "2 to head_dim",
            config.partial_rotary_factor,
            config.head_dim,
            rotated));
  if (config.rope_scaling && config.partial_rotary_factor < 1)
    reader.problem(
        kKey,
        fmt::format(
            "{} beside rope_type \"{}\" is not supported",
            config.partial_rotary_factor,
            to_string(config.rope_scaling->type)));
}

}  // namespace

void read_rope(const Reader& reader, DecoderConfig& config) {
  if (config.architecture == Architecture::kGemma3)
    return read_gemma3_rope(reader, config);
  auto theta = reader.number("rope_theta", Bound::kAbove, 0.0);
  const bool is_partial = config.architecture == Architecture::kGlm4Moe;
  if (is_partial)
    config.partial_rotary_factor =
        reader.number("partial_rotary_factor", Bound::kAbove, 0.0)
            .value_or(0.5);
  const char* read_from = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* dictionary = dictionary_at(reader, key);
    if (dictionary == nullptr)
      continue;
    const Reader rope = reader.inside(key, *dictionary);
    const auto scaling = read_rope_dictionary(rope, reader, config);
    if (read_from != nullptr && scaling != config.rope_scaling)
      reader.problem(key, fmt::format("conflicts with {}", read_from));
    config.rope_scaling = scaling;
    read_from = key;
    const auto inner_theta = rope.number("rope_theta", Bound::kAbove, 0.0);
    if (theta && inner_theta && *theta != *inner_theta) {
      rope.problem(
          "rope_theta",
          fmt::format(
              "{} conflicts with rope_theta {} given elsewhere",
              *inner_theta,
              *theta));
    }
    if (inner_theta)
      theta = inner_theta;
    if (is_partial)
      config.partial_rotary_factor =
          rope.number("partial_rotary_factor", Bound::kAbove, 0.0)
              .value_or(config.partial_rotary_factor);
  }
  config.rope_theta = theta.value_or(config.rope_theta);
  if (is_partial)
    check_partial_rotary(reader, config);
}

namespace {

// layer_types (transformers 4.53 and later). One entry per layer; empty after a
// problem.
std::optional<std::vector<LayerType>> read_layer_types(
    const Reader& reader,
    int64_t num_hidden_layers) {
  const json* types = reader.find("layer_types");
  if (types == nullptr)
    return std::nullopt;
  const auto layers = static_cast<size_t>(num_hidden_layers);
  std::vector<LayerType> result;
  if (!types->is_array() || types->size() < layers) {
    reader.problem(
        "layer_types",
        fmt::format("is not a list of {} names", num_hidden_layers));
    return result;
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    const json& type = (*types)[layer];
    const auto known = find_choice<LayerType>(
        type.is_string() ? type.get_ref<const std::string&>() : "");
    if (!known) {
      reader.problem(
          "layer_types",
          fmt::format("{} is not supported", Reader::show(type)));
      return std::vector<LayerType>();
    }
    result.push_back(*known);
  }
  return result;
}

// Whether transformers obeys the list; other models' layers are all the same.
// Its AutoConfig takes Mistral with a list for Ministral, which obeys it.
bool obeys_layer_types(Architecture architecture) {
  return is_gemma(architecture) || architecture == Architecture::kMistral ||
         architecture == Architecture::kQwen2 ||
         architecture == Architecture::kQwen3 ||
         architecture == Architecture::kQwen2Moe ||
         architecture == Architecture::kDots1;
}

// In tokens; absent where the model has none. transformers has a default for an
// absent key, and none for null.
std::optional<int64_t> read_window_size(
    const Reader& reader,
    const DecoderConfig& config) {
  constexpr const char* kKey = "sliding_window";
  std::optional<int64_t> transformers_default = 4096;
  switch (config.architecture) {
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kQwen2Moe:
    case Architecture::kQwen3Moe:
      if (!reader.boolean("use_sliding_window").value_or(false))
        return std::nullopt;
      break;
    case Architecture::kLlama:
    case Architecture::kOlmoe:
    case Architecture::kGlm4Moe:
      if (const auto size = reader.integer(kKey, 1, kMaxPositions))
        reader.problem(
            kKey,
            fmt::format(
                "{}, but {} has no sliding window; MistralForCausalLM has",
                *size,
                name_of(config.architecture).class_name));
      return std::nullopt;
    case Architecture::kMixtral:
      transformers_default.reset();
      break;
    default:
      break;
  }
  if (reader.holds_null(kKey))
    return std::nullopt;
  const auto size = reader.integer(kKey, 1, kMaxPositions);
  return size ? size : transformers_default;
}

// What transformers' configuration_*.py gives the layers of a model with a
// window where the file does not list them.
std::vector<LayerType> default_layer_types(
    const Reader& reader,
    const DecoderConfig& config) {
  const auto max_window_layers = [&](int64_t transformers_default) {
    return reader.integer("max_window_layers", 0, kMaxWidth)
        .value_or(transformers_default);
  };
  // Layers of [begin, end) slide, but for the last of every `pattern`.
  int64_t begin = 0;
  int64_t end = config.num_hidden_layers;
  int64_t pattern = config.num_hidden_layers + 1;
  switch (config.architecture) {
    case Architecture::kGemma2:
      pattern = 2;
      break;
    case Architecture::kGemma3:
      pattern =
          reader.integer("sliding_window_pattern", 1, kMaxLayers).value_or(6);
      break;
    case Architecture::kQwen2Moe:
      end = max_window_layers(28);
      pattern = 2;
      // Earlier versions of Brigade wrote this for a window in all layers.
      if (end == 0)
        reader.problem(
            "layer_types",
            "is missing beside use_sliding_window and max_window_layers 0, "
            "which mean no window to transformers, but one in all layers in "
            "files of earlier versions of Brigade; give layer_types");
      break;
    case Architecture::kQwen2:
    case Architecture::kQwen3:
      begin = max_window_layers(28);
      break;
    case Architecture::kDots1:
      begin = max_window_layers(62);
      break;
    default:
      break;
  }
  std::vector<LayerType> types;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const bool slides =
        layer >= begin && layer < end && (layer + 1) % pattern != 0;
    types.push_back(
        slides ? LayerType::kSlidingAttention : LayerType::kFullAttention);
  }
  return types;
}

}  // namespace

void read_sliding_window(const Reader& reader, DecoderConfig& config) {
  const auto size = read_window_size(reader, config);
  const auto listed = read_layer_types(reader, config.num_hidden_layers);
  const bool has_lists = is_gemma(config.architecture);
  const bool is_listed = listed && obeys_layer_types(config.architecture);
  std::vector<LayerType> types;
  if (is_listed)
    types = *listed;
  else if (size || has_lists)
    types = default_layer_types(reader, config);
  const auto sliding_of = [](const std::vector<LayerType>& list) {
    return std::count(list.begin(), list.end(), LayerType::kSlidingAttention);
  };
  const auto sliding = sliding_of(types);
  if (listed && !is_listed && !listed->empty() &&
      reader.is_sound({"sliding_window"}) && sliding_of(*listed) != sliding)
    reader.problem(
        "layer_types",
        fmt::format(
            "is not obeyed by {}, of which {} layers have a sliding window "
            "here; leave it out",
            name_of(config.architecture).class_name,
            sliding == 0 ? "no" : "all"));
  if (has_lists)
    config.layer_types = types;
  if (sliding == 0)
    return;
  if (sliding < std::ssize(types) && !has_lists)
    reader.problem(
        is_listed                                        ? "layer_types"
        : config.architecture == Architecture::kQwen2Moe ? "use_sliding_window"
                                                         : "max_window_layers",
        "gives some layers a sliding window and others none, which is not "
        "supported; all layers must be the same");
  else if (reader.holds_null("sliding_window"))
    reader.problem("sliding_window", "is null; the sliding layers need it");
  else if (!size)
    reader.problem(
        "use_sliding_window", "must be true for the layers that slide");
  config.sliding_window = size;
}

}  // namespace brigade
