// Which part of a model a rank's pipeline stage holds.
#pragma once

#include <cstdint>
#include <limits>

#include "brigade/model_spec/decoder_config.h"
#include "brigade/topology/layer_partition.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

// Experts begin .. end - 1 of each layer that has some.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  bool operator==(const ExpertRange&) const = default;
};

// The first part embeds; the last one has the final norm and the head.
struct ModelPart {
  LayerRange layers;
  bool is_first = true;
  bool is_last = true;
  ExpertRange experts = {};  // all, unless they are divided among ranks
};

// Those of a rank, by its place in dims.ep; all of a model without experts.
ExpertRange experts_of_rank(
    const DecoderConfig& config,
    const ParallelDims& dims,
    const Coordinate& at);

// All layers, with embedding and head.
ModelPart whole_model(const DecoderConfig& config);

}  // namespace brigade
