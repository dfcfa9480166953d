#include "brigade/model_spec/upcycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

Architecture with_experts(const DecoderConfig& dense) {
  switch (dense.architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
      if (dense.qkv_bias || dense.o_bias || dense.mlp_bias)
        throw ConfigError(
            "[upcycle] the model has biases, which Mixtral has not");
      return Architecture::kMixtral;
    case Architecture::kQwen3:
      return Architecture::kQwen3Moe;
    default:
      throw ConfigError(fmt::format(
          "[upcycle] {} has no counterpart with experts; LlamaForCausalLM, "
          "MistralForCausalLM and Qwen3ForCausalLM have",
          name_of(dense.architecture).class_name));
  }
}

}  // namespace

DecoderConfig upcycled(
    const DecoderConfig& dense,
    const UpcycleOptions& options) {
  DecoderConfig config = dense;
  config.architecture = with_experts(dense);
  if (options.per_token < 1 || options.per_token > options.experts)
    throw ConfigError(fmt::format(
        "[upcycle] {} experts for each token, but there are {}; give "
        "--experts-per-token from 1 to the number of --upcycle",
        options.per_token,
        options.experts));
  config.experts = ExpertsConfig{
      .num_experts = options.experts,
      .num_experts_per_tok = options.per_token,
      .width = dense.intermediate_size,
      .norm_topk_prob = true};
  // As a program that reads the folder will.
  std::vector<std::string> problems;
  parse_decoder_config(to_hugging_face_json(config, "float32"), "", problems);
  if (!problems.empty())
    throw ConfigError(fmt::format(
        "[upcycle] {} cannot be as this model is: {}",
        name_of(config.architecture).class_name,
        problems.front()));
  return config;
}

std::string dense_name_of(
    const ParameterRow& row,
    const ModelDescription& upcycled) {
  if (row.role == ParameterRole::kRouter)
    return {};
  if (row.expert == kNoExpert)
    return row.name;
  const auto layer = std::find_if(
      upcycled.layers.begin(),
      upcycled.layers.end(),
      [](const LayerDescription& each) { return each.experts.has_value(); });
  BRIGADE_ASSERT(layer != upcycled.layers.end());
  const ExpertsDescription& experts = *layer->experts;
  // "model.layers.3." BLOCK ".experts.5." LINEAR ".weight"
  const std::string middle =
      fmt::format("{}.experts.{}.", experts.block, row.expert);
  const size_t at = row.name.find(middle);
  BRIGADE_ASSERT(at != std::string::npos, "'{}'", row.name);
  const std::string linear = row.name.substr(at + middle.size());
  for (const auto& [ours, dense] :
       {std::pair(experts.gate, "gate_proj"),
        std::pair(experts.up, "up_proj"),
        std::pair(experts.down, "down_proj")}) {
    if (linear == ours + ".weight")
      return fmt::format("{}mlp.{}.weight", row.name.substr(0, at), dense);
  }
  BRIGADE_ASSERT(false, "'{}' is no expert's", row.name);
}

}  // namespace brigade
