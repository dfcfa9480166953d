#include "brigade/data_parallel/data_parallel.h"

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_set>

#include "brigade/base/error.h"
#include "brigade/data_parallel/weight_units.h"

namespace brigade {
namespace {

// What embeddings do to the gradients of their weights.
struct EmbeddingWeights {
  std::unordered_set<const void*> row_sparse;
  std::unordered_set<const void*> sparse_gradients;

  void note(const torch::nn::Module& part) {
    if (const auto* embedding = part.as<torch::nn::Embedding>()) {
      row_sparse.insert(embedding->weight.unsafeGetTensorImpl());
      if (embedding->options.sparse())
        sparse_gradients.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part.as<torch::nn::EmbeddingBag>()) {
      if (bag->options.sparse())
        sparse_gradients.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_ignored(
    const torch::nn::Module& module,
    const std::vector<std::string>& ignore) {
  for (const std::string& name : ignore) {
    if (!module.named_parameters().contains(name) &&
        !module.named_buffers().contains(name)) {
      throw ConfigError(fmt::format(
          "[data_parallel] ignore names '{}', but the module has no parameter "
          "or buffer of that name; give full names, as named_parameters() does",
          name));
    }
  }
}

}  // namespace

std::vector<NamedParam> parameters_of(
    const torch::nn::Module& module,
    const std::vector<std::string>& ignore) {
  check_ignored(module, ignore);
  EmbeddingWeights embeddings;
  embeddings.note(module);  // apart: it need not be owned by a shared_ptr
  for (const auto& part : module.modules(/*include_self=*/false))
    embeddings.note(*part);
  std::vector<NamedParam> params;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const void* impl = item.value().unsafeGetTensorImpl();
    if (contains(ignore, item.key()) || !seen.insert(impl).second)
      continue;
    params.push_back(
        {.name = item.key(),
         .tensor = item.value(),
         .is_row_sparse = embeddings.row_sparse.count(impl) > 0,
         .has_sparse_gradient = embeddings.sparse_gradients.count(impl) > 0});
  }
  return params;
}

std::vector<NamedParam> parameters_of(
    const torch::nn::Module& module,
    const WrapOptions& wrap,
    Sharding sharding) {
  std::vector<NamedParam> params = parameters_of(module, wrap.ignore);
  if (sharding != Sharding::kParameters) {
    if (!wrap.units.empty()) {
      throw ConfigError(fmt::format(
          "[data_parallel] units are given, but sharding is {}, which leaves "
          "weights whole; set Sharding::kParameters, or leave units out",
          to_string(sharding)));
    }
    return params;
  }
  assign_units(
      module, wrap.units.empty() ? default_units(module) : wrap.units, params);
  return params;
}

void broadcast_buffers(
    const torch::nn::Module& module,
    Communicator& communicator,
    int root,
    const std::vector<std::string>& ignore) {
  std::vector<torch::Tensor> buffers;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined() && !contains(ignore, item.key()))
      buffers.push_back(item.value());
  }
  broadcast_tensors(buffers, root, communicator);
}

NoSync::Mode mode_of_micro_batch(size_t index, size_t count) {
  if (index >= count) {
    throw ConfigError(fmt::format(
        "[data_parallel] accumulate_until_last({}, {}): a step of {} "
        "micro-batches has none with that index; count from 0",
        index,
        count,
        count));
  }
  return index + 1 < count ? NoSync::Mode::kAccumulate : NoSync::Mode::kReduce;
}

std::vector<torch::Tensor> owned_parameters(const GradSync& sync) {
  if (sync.options().handover != GradHandover::kMainGrad) {
    throw ConfigError(
        "[data_parallel] owned_parameters() are of flat memory: wrap with "
        "handover = GradHandover::kMainGrad");
  }
  std::vector<torch::Tensor> owned;
  for (const GradSegment& segment : sync.segments()) {
    if (is_16_bit(segment.weight.scalar_type())) {
      throw ConfigError(fmt::format(
          "[data_parallel] owned_parameters() of {} weights: torch::optim "
          "wants "
          "gradients of the weights' dtype, and ours are float32; use "
          "make_adamw(), which keeps float32 masters",
          c10::toString(segment.weight.scalar_type())));
    }
    owned.push_back(segment.owned_weight().detach().requires_grad_());
    owned.back().mutable_grad() = segment.owned_main_grad();
  }
  return owned;
}

void step_owned(GradSync& sync, torch::optim::Optimizer& optimizer) {
  const double scale = sync.grad_scale();
  if (scale != 1.0) {
    const torch::NoGradGuard no_grad;
    for (const GradSegment& segment : sync.segments())
      segment.owned_main_grad().mul_(scale);
  }
  optimizer.step();
  sync.zero_main_grads();
  sync.gather_weights();
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
        {.name = fmt::format("bucket {}", groups.size()),
         .weight = segment.owned_weight(),
         .main_grad = segment.owned_main_grad(),
         .weight_decay = weight_decay,
         .memory = sync.flat_memory()});
  }
  return {std::move(groups), options};
}

}  // namespace brigade
