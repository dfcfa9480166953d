// How a model is cut over the ranks of a run. No processes are needed:
// --dry-run and the trainer share it.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/model_spec/model_description.h"
#include "brigade/model_spec/model_part.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/schedule.h"
#include "brigade/topology/layer_partition.h"
#include "brigade/topology/token_layout.h"

namespace brigade {

// The model that the config describes. Throws ConfigError when model.name is an
// id whose files are not on this machine.
const DecoderConfig& model_of(const TrainConfig& config);
// The same, described, with the config's adapter and parametrization.
ModelDescription description_of(const TrainConfig& config);

// The layers of each of pp * pp_virtual_stages stages, by partition_layers().
std::vector<LayerRange> stage_layers(
    const TrainConfig& config,
    const DecoderConfig& decoder,
    std::vector<std::string>& problems);
// One part per pipeline stage: pp * pp_virtual_stages of them, with the experts
// of the rank at `at`. Throws ConfigError with what stage_layers() finds.
std::vector<ModelPart> stage_parts(
    const TrainConfig& config,
    const Coordinate& at = {});

PipelineSize pipeline_size(const TrainConfig& config);

Schedule training_schedule(const TrainConfig& config);
Schedule evaluation_schedule(const TrainConfig& config);

// How activations lie between the tensor parallel parts of a block.
TokenLayout token_layout(const DistributedConfig& distributed);

}  // namespace brigade
