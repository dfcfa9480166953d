#include "brigade/model/model_context.h"

#include "brigade/comm/self_communicator.h"

namespace brigade {

void ModelContext::announce_backward(
    const torch::Tensor& output,
    const ModelUnit& unit) const {
  if (!before_backward || !output.defined() || !output.requires_grad())
    return;
  output.register_hook(
      [notify = before_backward, unit](const torch::Tensor& /*gradient*/) {
        notify(unit);
      });
}

void ModelContext::set_whole_sequences() {
  context_parallel = make_self_communicator({.name = "cp"});
  sequence = context_parallel;
}

ModelContext single_rank_context(const DecoderConfig& config) {
  ModelContext context;
  context.description = describe_model(config);
  context.tensor_parallel.group = make_self_communicator({.name = "tp"});
  context.set_whole_sequences();
  context.expert_parallel = make_self_communicator({.name = "ep"});
  return context;
}

}  // namespace brigade
