// The keys of mixture of experts, which differ between architectures in name
// and default. They follow transformers' configuration_mixtral.py,
// _qwen2_moe.py, _qwen3_moe.py, _olmoe.py, _dots1.py and _glm4_moe.py.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "brigade/model_spec/decoder_config_reader.h"

namespace brigade {
namespace {

using nlohmann::json;
using Reader = DecoderConfigReader;
using Bound = Reader::Bound;

constexpr int64_t kMaxExperts = int64_t{1} << 14;

// Whether decoder_sparse_step chooses the model's layers with experts.
bool is_qwen(const DecoderConfig& config) {
  return config.architecture == Architecture::kQwen2Moe ||
         config.architecture == Architecture::kQwen3Moe;
}

// Some of whose defaults differ from dots1's.
bool is_glm(const DecoderConfig& config) {
  return config.architecture == Architecture::kGlm4Moe;
}

// transformers writes another name than the hub's files have.
int64_t read_num_experts(const Reader& reader, const DecoderConfig& config) {
  if (has_deepseek_router(config.architecture))
    return reader.required_integer("n_routed_experts", 1, kMaxExperts);
  const bool is_mixtral = config.architecture == Architecture::kMixtral;
  const char* usual = is_mixtral ? "num_local_experts" : "num_experts";
  const char* other = is_mixtral ? "num_experts" : "num_local_experts";
  const auto by_other = reader.integer(other, 1, kMaxExperts);
  if (reader.find(usual) == nullptr && by_other)
    return *by_other;
  const int64_t count = reader.required_integer(usual, 1, kMaxExperts);
  if (by_other && *by_other != count)
    reader.problem(
        other, fmt::format("{} conflicts with {} {}", *by_other, usual, count));
  return count;
}

void read_dense_layers(
    const Reader& reader,
    const DecoderConfig& config,
    ExpertsConfig& experts) {
  if (has_deepseek_router(config.architecture)) {
    experts.first_k_dense_replace =
        reader.integer("first_k_dense_replace", 0, kMaxLayers)
            .value_or(is_glm(config) ? 1 : 0);
    return;
  }
  if (!is_qwen(config))
    return;
  experts.decoder_sparse_step =
      reader.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  const json* layers = reader.find("mlp_only_layers");
  if (layers == nullptr)
    return;
  if (!layers->is_array()) {
    reader.problem("mlp_only_layers", Reader::show(*layers) + " is no list");
    return;
  }
  for (const json& layer : *layers) {
    const auto index =
        Reader::integer_in(layer, 0, std::numeric_limits<int64_t>::max());
    if (!index) {
      reader.problem(
          "mlp_only_layers", Reader::show(layer) + " is no index of a layer");
      return;
    }
    // Of a model that was made shorter; transformers ignores it too.
    if (*index < config.num_hidden_layers)
      experts.mlp_only_layers.push_back(*index);
  }
}

void read_groups(const Reader& reader, ExpertsConfig& experts) {
  experts.n_group = reader.integer("n_group", 1, kMaxExperts).value_or(1);
  experts.topk_group = reader.integer("topk_group", 1, kMaxExperts).value_or(1);
  if (!reader.is_sound({"n_group", "topk_group"}))
    return;
  if (experts.num_experts % experts.n_group != 0 ||
      (experts.n_group > 1 && experts.num_experts / experts.n_group < 2)) {
    reader.problem(
        "n_group",
        fmt::format(
            "{} groups of {} experts: they must be equal, of at least 2",
            experts.n_group,
            experts.num_experts));
    return;
  }
  const int64_t choice =
      experts.num_experts / experts.n_group * experts.topk_group;
  if (experts.topk_group > experts.n_group ||
      choice < experts.num_experts_per_tok) {
    reader.problem(
        "topk_group",
        fmt::format(
            "{} of {} groups with {} experts in all: num_experts_per_tok {} "
            "must find its experts there",
            experts.topk_group,
            experts.n_group,
            choice,
            experts.num_experts_per_tok));
  }
}

int64_t read_shared_width(
    const Reader& reader,
    const DecoderConfig& config,
    const ExpertsConfig& experts) {
  if (config.architecture == Architecture::kQwen2Moe)
    return reader.required_integer(
        "shared_expert_intermediate_size", 1, kMaxWidth);
  if (!has_deepseek_router(config.architecture))
    return 0;
  const int64_t width = reader.integer("n_shared_experts", 0, kMaxExperts)
                            .value_or(is_glm(config) ? 1 : 0) *
                        experts.width;
  if (width > kMaxWidth)
    reader.problem("n_shared_experts", fmt::format("{} wide in all", width));
  return std::min(width, kMaxWidth);
}

// A key that may change what a router does, and that we do not know.
void refuse_unknown_router_keys(
    const Reader& reader,
    const DecoderConfig& config) {
  std::vector<std::string_view> known = {
      "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits"};
  switch (config.architecture) {
    case Architecture::kMixtral:
      known.insert(
          known.end(),
          {"num_local_experts", "num_experts", "router_jitter_noise"});
      break;
    case Architecture::kQwen2Moe:
      known.emplace_back("shared_expert_intermediate_size");
      [[fallthrough]];
    case Architecture::kQwen3Moe:
      known.insert(
          known.end(),
          {"moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step"});
      [[fallthrough]];
    case Architecture::kOlmoe:
      known.insert(
          known.end(), {"num_experts", "num_local_experts", "norm_topk_prob"});
      break;
    default:
      known.insert(
          known.end(),
          {"n_routed_experts",
           "n_shared_experts",
           "moe_intermediate_size",
           "norm_topk_prob",
           "n_group",
           "topk_group",
           "first_k_dense_replace",
           "routed_scaling_factor",
           // Which this architecture implies; checked below.
           "scoring_func",
           "topk_method"});
      break;
  }
  static constexpr std::array kParts = {
      "expert",
      "router",
      "moe_",
      "topk",
      "routed_",
      "score_func",
      "scoring_func",
      "capacity_factor",
      "n_group",
      "first_k_dense",
      "mlp_only_layers",
      "sparse_step"};
  for (const std::string& key : reader.keys()) {
    const bool is_of_router =
        std::any_of(kParts.begin(), kParts.end(), [&](const char* part) {
          return key.find(part) != std::string::npos;
        });
    const json* value = reader.find(key.c_str());
    // 1: every layer has experts, whose sum is left as it is.
    const bool may_be_one = key == "moe_layer_freq" ||
                            key == "decoder_sparse_step" ||
                            key == "routed_scaling_factor";
    const bool says_nothing = value == nullptr || value->empty() ||
                              *value == false || *value == 0 ||
                              (may_be_one && *value == 1);
    if (is_of_router && !says_nothing &&
        std::find(known.begin(), known.end(), key) == known.end())
      reader.problem(
          key.c_str(),
          fmt::format(
              "{} is not supported; of the router and the experts known are {}",
              Reader::show(*value),
              fmt::join(known, ", ")));
  }
}

void read_deepseek_router(
    const Reader& reader,
    bool is_dots,
    ExpertsConfig& experts) {
  experts.routed_scaling_factor =
      reader.number("routed_scaling_factor", Bound::kAbove, 0.0).value_or(1.0);
  for (const auto& [key, only] :
       {std::pair("scoring_func", "sigmoid"),
        std::pair("topk_method", "noaux_tc")}) {
    const auto value = reader.text(key);
    // Older files of dots.llm1 name the method under both keys.
    const bool is_method = is_dots && value == "noaux_tc";
    if (value && *value != only && !is_method)
      reader.problem(
          key,
          fmt::format("\"{}\" is not supported; only \"{}\" is", *value, only));
  }
  read_groups(reader, experts);
}

}  // namespace

void read_experts(const Reader& reader, DecoderConfig& config) {
  ExpertsConfig experts;
  experts.num_experts = read_num_experts(reader, config);
  experts.num_experts_per_tok =
      reader.required_integer("num_experts_per_tok", 1, kMaxExperts);
  if (reader.is_sound(
          {"num_experts",
           "num_local_experts",
           "n_routed_experts",
           "num_experts_per_tok"}) &&
      experts.num_experts_per_tok > experts.num_experts) {
    reader.problem(
        "num_experts_per_tok",
        fmt::format(
            "{} experts for each token, but there are {}",
            experts.num_experts_per_tok,
            experts.num_experts));
  }
  const bool has_own_width =
      is_qwen(config) || has_deepseek_router(config.architecture);
  experts.width = has_own_width ? reader.required_integer(
                                      "moe_intermediate_size", 1, kMaxWidth)
                                : config.intermediate_size;
  experts.shared_width = read_shared_width(reader, config, experts);
  experts.norm_topk_prob =
      config.architecture == Architecture::kMixtral ||
      reader.boolean("norm_topk_prob").value_or(is_glm(config));
  experts.router_aux_loss_coef =
      reader.number("router_aux_loss_coef", Bound::kAtLeast, 0.0)
          .value_or(config.architecture == Architecture::kOlmoe ? 0.01 : 0.001);
  read_dense_layers(reader, config, experts);
  if (has_deepseek_router(config.architecture))
    read_deepseek_router(
        reader, config.architecture == Architecture::kDots1, experts);
  const auto noise = reader.number("router_jitter_noise", Bound::kAtLeast, 0.0);
  if (noise && *noise > 0)
    reader.problem(
        "router_jitter_noise",
        fmt::format("{} is not supported; only 0 is", *noise));
  refuse_unknown_router_keys(reader, config);
  config.experts = std::move(experts);
}

void add_experts(const DecoderConfig& config, json& result) {
  const ExpertsConfig& experts = *config.experts;
  result["num_experts_per_tok"] = experts.num_experts_per_tok;
  if (has_deepseek_router(config.architecture)) {
    result["n_routed_experts"] = experts.num_experts;
    result["n_shared_experts"] =
        experts.shared_width > 0 ? json(experts.shared_width / experts.width)
                                 : json();
    result["first_k_dense_replace"] = experts.first_k_dense_replace;
    result["routed_scaling_factor"] = experts.routed_scaling_factor;
    result["n_group"] = experts.n_group;
    result["topk_group"] = experts.topk_group;
    // vLLM's dots1 reads these without defaults.
    if (config.architecture == Architecture::kDots1) {
      result["scoring_func"] = "sigmoid";
      result["topk_method"] = "noaux_tc";
      result["moe_layer_freq"] = 1;
    }
  } else {
    const bool is_mixtral = config.architecture == Architecture::kMixtral;
    result[is_mixtral ? "num_local_experts" : "num_experts"] =
        experts.num_experts;
    result["output_router_logits"] = false;
    result["router_aux_loss_coef"] = experts.router_aux_loss_coef;
  }
  if (config.architecture != Architecture::kMixtral)
    result["norm_topk_prob"] = experts.norm_topk_prob;
  if (is_qwen(config)) {
    result["decoder_sparse_step"] = experts.decoder_sparse_step;
    result["mlp_only_layers"] = experts.mlp_only_layers;
  }
  if (is_qwen(config) || has_deepseek_router(config.architecture))
    result["moe_intermediate_size"] = experts.width;
  if (config.architecture == Architecture::kQwen2Moe)
    result["shared_expert_intermediate_size"] = experts.shared_width;
}

}  // namespace brigade
