// What a model is built with, from a run's config.
#pragma once

#include <torch/types.h>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/model/model_context.h"
#include "brigade/ops/op_options.h"

namespace brigade {

torch::ScalarType scalar_type(ModelDtype dtype);

// The config's model on this rank's device, over the mesh's groups of tp and
// cp. Throws ConfigError as model_of().
ModelContext model_context(const TrainConfig& config, const ProcessMesh& mesh);

}  // namespace brigade
