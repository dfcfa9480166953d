#include "brigade/data_parallel/stepped_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/torch_optimizer_fields.h"

namespace brigade {
namespace {

bool is_of_sync(const SteppedTensor& stepped) {
  return !stepped.parts.empty() || stepped.segment.has_value();
}

}  // namespace

SteppedTensor find_stepped(const GradSync& sync, const torch::Tensor& tensor) {
  SteppedTensor stepped;
  const auto& params = sync.params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].tensor.is_same(tensor)) {
      stepped.parts = {{static_cast<int>(i), 0, 0, tensor.numel()}};
      return stepped;
    }
  }
  if (sync.options().handover != GradHandover::kMainGrad)
    return stepped;
  if (const auto run = find_owned(sync, tensor)) {
    stepped.parts = parts_of(sync, *run);
    stepped.segment = run->segment;
    stepped.offset = run->offset;
  }
  return stepped;
}

std::vector<SteppedTensor> stepped_by(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer) {
  std::vector<SteppedTensor> all;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& param : group.params()) {
      auto* state = find_param_state(optimizer, param);
      if (state == nullptr)
        continue;
      SteppedTensor stepped = find_stepped(sync, param);
      if (!is_of_sync(stepped)) {
        throw ConfigError(fmt::format(
            "[data_parallel] the optimizer has a state of a tensor of shape {} "
            "that is not synchronised (WrapOptions::ignore): it is each rank's "
            "own; give it an optimizer of its own",
            c10::str(param.sizes())));
      }
      const OptimizerFields fields = fields_of(*state);
      stepped.has_state = true;
      stepped.step = fields.step != nullptr ? *fields.step : 0;
      for (const auto& [name, tensor] : fields.tensors) {
        if (tensor->defined())
          stepped.fields[name] = *tensor;
      }
      all.push_back(std::move(stepped));
    }
  }
  return all;
}

}  // namespace brigade
