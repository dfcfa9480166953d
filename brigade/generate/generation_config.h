// The layout under which a checkpoint's model generates text.
#pragma once

#include <vector>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/config/train_config.h"

namespace brigade {

// The model of the checkpoint laid out over `world_size` ranks: one stage after
// the other of pp, its heads and its vocabulary cut over tp; dp (what is left
// where it is not given) and cp are further replicas. The layout of the run
// that saved the checkpoint does not matter.
// `overrides`: distributed.*_size, pp_layers, timeout_seconds and
// check_collectives. Throws ConfigError for other keys and for layouts that do
// not fit, DataError when the manifest describes no model.
TrainConfig generation_config(
    const Checkpoint& checkpoint,
    const std::vector<ConfigOverride>& overrides,
    int world_size);

}  // namespace brigade
