#include "brigade/config/model_layout.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

const DecoderConfig& model_of(const TrainConfig& config) {
  if (!config.model.decoder) {
    throw ConfigError(fmt::format(
        "/model/name: '{}' is neither a folder with a config.json nor a model "
        "in the local Hugging Face cache",
        config.model.name));
  }
  return *config.model.decoder;
}

ModelDescription description_of(const TrainConfig& config) {
  ModelDescription description = describe_model(model_of(config));
  description.adapter = config.adapter;
  description.mup = config.training.mup;
  return description;
}

PipelineSize pipeline_size(const TrainConfig& config) {
  return {
      .ranks = config.distributed.dims.pp,
      .virtual_stages = config.distributed.pp_virtual_stages,
      .micro_batches =
          static_cast<int>(config.training.gradient_accumulation_steps)};
}

std::vector<LayerRange> stage_layers(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems) {
  const DistributedConfig& distributed = config.distributed;
  return partition_layers(
      estimate_layer_costs(
          {.num_layers = static_cast<int>(decoder.num_hidden_layers),
           .hidden_size = decoder.hidden_size,
           .intermediate_size = decoder.intermediate_size,
           .attention_width = decoder.num_attention_heads * decoder.head_dim,
           .key_value_width = decoder.num_key_value_heads * decoder.head_dim,
           .vocab_size = decoder.vocab_size,
           .sequence_tokens = config.training.seq_length},
          decoder.experts),
      {.pp = distributed.dims.pp,
       .virtual_stages = distributed.pp_virtual_stages,
       .pp_layers = distributed.pp_layers},
      problems);
}

std::vector<ModelPart> stage_parts(
    const TrainConfig& config,
    const Coordinate& at) {
  std::vector<std::string> problems;
  const auto ranges = stage_layers(config, model_of(config), problems);
  if (!problems.empty())
    throw ConfigError(problems);
  const ExpertRange experts =
      experts_of_rank(model_of(config), config.parallel_dims(), at);
  std::vector<ModelPart> parts;
  for (size_t i = 0; i < ranges.size(); ++i)
    parts.push_back({ranges[i], i == 0, i + 1 == ranges.size(), experts});
  return parts;
}

Schedule training_schedule(const TrainConfig& config) {
  return make_schedule(config.distributed.pp_engine, pipeline_size(config));
}

Schedule evaluation_schedule(const TrainConfig& config) {
  return make_evaluation_schedule(pipeline_size(config));
}

TokenLayout token_layout(const DistributedConfig& distributed) {
  return distributed.sequence_parallel ? TokenLayout::kSharded
                                       : TokenLayout::kReplicated;
}

}  // namespace brigade
