#include "brigade/planner/stage_cut.h"

#include "brigade/base/error.h"

namespace brigade::planner {

std::vector<LayerRange> cut_stages(const Training& training, int stages) {
  const ModelShape& shape = training.shape;
  const LayerCosts costs = estimate_layer_costs(
      {.num_layers = shape.layers,
       .hidden_size = shape.hidden,
       .intermediate_size = shape.intermediate * (shape.up_matrices + 1) / 3,
       .attention_width = shape.query_width(),
       .key_value_width = shape.key_value_width(),
       .vocab_size = shape.vocab,
       .sequence_tokens = training.batch.sequence_tokens},
      shape.experts);
  LayerPartitionOptions options;
  options.pp = stages;
  if (!training.stage_layers.empty())
    options.pp_layers = training.stage_layers;
  std::vector<std::string> problems;
  std::vector<LayerRange> cut = partition_layers(costs, options, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return cut;
}

StageParameters stage_parameters(
    const ModelShape& shape,
    const std::vector<LayerRange>& cut,
    int stage) {
  const LayerRange& range = cut[static_cast<size_t>(stage)];
  const bool is_first = stage == 0;
  const bool is_last = stage + 1 == static_cast<int>(cut.size());
  int64_t count = range_parameters(shape, range);
  if (is_first)
    count += embedding_parameters(shape);
  if (is_last)
    count += head_parameters(shape);
  if (is_first && is_last && shape.tied_head)
    count -= shape.vocab * shape.hidden;
  return {
      count,
      shape.layers_with(LayerMlp::kExperts, range) * expert_parameters(shape)};
}

}  // namespace brigade::planner
