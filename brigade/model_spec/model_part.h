// Which part of a model a pipeline stage holds.
#pragma once

#include "brigade/model_spec/decoder_config.h"
#include "brigade/topology/layer_partition.h"

namespace brigade {

// The first part embeds; the last one has the final norm and the head.
struct ModelPart {
  LayerRange layers;
  bool is_first = true;
  bool is_last = true;
};

// All layers, with embedding and head.
ModelPart whole_model(const DecoderConfig& config);

}  // namespace brigade
