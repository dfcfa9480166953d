// What the routers of all ranks did in a step, put together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/model/router_statistics.h"
#include "brigade/model_spec/decoder_config.h"

namespace brigade {

struct RouterUse {
  std::vector<ExpertUse> layers;  // those with experts
  // The first of them whose router gave weights that are not finite.
  std::optional<int64_t> bad_layer;

  // "the router of layer 3 gave weights that are not finite, as its input is
  // not"; needs a bad layer.
  std::string describe_bad_layer() const;
};

// Collective over the world. `noted` is of this rank's stages, on the CPU.
RouterUse sum_up_routers(
    const DecoderConfig& decoder,
    const ProcessMesh& mesh,
    const RouterStatisticsByLayer& noted);

}  // namespace brigade
