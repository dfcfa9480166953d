#include "brigade/model/from_config.h"

#include "brigade/config/model_layout.h"

namespace brigade {

torch::ScalarType scalar_type(ModelDtype dtype) {
  return dtype == ModelDtype::kBfloat16 ? torch::kBFloat16 : torch::kFloat;
}

ModelContext model_context(const TrainConfig& config, const ProcessMesh& mesh) {
  ModelContext context;
  context.description = description_of(config);
  context.dtype = scalar_type(config.model.dtype);
  context.device = mesh.device();
  context.kernels = config.model.kernels;
  context.tensor_parallel.group = mesh.axis(Axis::kTp);
  context.tensor_parallel.tokens = token_layout(config.distributed);
  context.context_parallel = mesh.axis(Axis::kCp);
  context.sequence = mesh.sequence();
  context.expert_parallel = mesh.expert_parallel();
  context.router_losses = config.training.router_losses;
  context.expert_capacity_factor = config.training.expert_capacity_factor;
  return context;
}

}  // namespace brigade
