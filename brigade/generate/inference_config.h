// The layout under which a stored model works: generates, is evaluated.
#pragma once

#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/generate/stored_model.h"

namespace brigade {

// The model laid out over `world_size` ranks: one stage after
// the other of pp, its heads and its vocabulary cut over tp; dp (what is left
// where it is not given) and cp are further replicas, ep of which divide the
// experts. The layout of the run that trained it does not matter.
// `overrides`: distributed.*_size, pp_layers, timeout_seconds and
// check_collectives, and model.dtype, in which it is computed in place of the
// stored one. Throws ConfigError for other keys and for layouts that do
// not fit.
TrainConfig inference_config(
    const StoredModel& stored,
    const std::vector<ConfigOverride>& overrides,
    int world_size);

}  // namespace brigade
