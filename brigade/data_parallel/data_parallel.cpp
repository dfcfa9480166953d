#include "brigade/data_parallel/data_parallel.h"

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <unordered_set>

#include "brigade/base/error.h"
#include "brigade/data_parallel/replica_check.h"

namespace brigade {

std::vector<NamedParam> parameters_of(const torch::nn::Module& module) {
  std::unordered_set<const void*> tables;
  const auto note = [&tables](const torch::nn::Module& part) {
    if (const auto* embedding = part.as<torch::nn::Embedding>())
      tables.insert(embedding->weight.unsafeGetTensorImpl());
  };
  note(module);  // apart: it need not be owned by a shared_ptr
  for (const auto& part : module.modules(/*include_self=*/false))
    note(*part);
  std::vector<NamedParam> params;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const void* impl = item.value().unsafeGetTensorImpl();
    if (seen.insert(impl).second)
      params.push_back({item.key(), item.value(), tables.count(impl) > 0});
  }
  return params;
}

void broadcast_buffers(
    const torch::nn::Module& module,
    Communicator& communicator) {
  broadcast_from_rank_0(module.buffers(), communicator);
}

AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options) {
  if (sync.options().handover != GradHandover::kMainGrad) {
    throw ConfigError(
        "[data_parallel] Brigade's AdamW reads the flat main_grads: wrap with "
        "handover = GradHandover::kMainGrad, or use torch::optim");
  }
  std::vector<AdamWGroup> groups;
  for (const GradSegment& segment : sync.segments()) {
    groups.push_back(
        {fmt::format("bucket {}", groups.size()),
         segment.weight,
         segment.main_grad,
         weight_decay});
  }
  return {std::move(groups), options};
}

}  // namespace brigade
