#include "brigade/wrap/module_tensors.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/data_parallel/check_params.h"
#include "brigade/data_parallel/shared_memory.h"
#include "brigade/wrap/sync_batch_norm.h"

namespace brigade {
namespace {

std::vector<State> named_parameters_of(const ModuleRef& module) {
  std::vector<State> result;
  if (module.plain != nullptr) {
    for (const auto& item : module.plain->named_parameters())
      result.push_back({item.key(), item.value()});
  } else {
    for (const auto& item : module.scripted->named_parameters())
      result.push_back({item.name, item.value});
  }
  return result;
}

std::vector<State> named_buffers_of(const ModuleRef& module) {
  std::vector<State> result;
  if (module.plain != nullptr) {
    for (const auto& item : module.plain->named_buffers())
      result.push_back({item.key(), item.value()});
  } else {
    for (const auto& item : module.scripted->named_buffers())
      result.push_back({item.name, item.value});
  }
  return result;
}

// The parameters, followed by the buffers.
std::vector<State> named_tensors_of(const ModuleRef& module) {
  std::vector<State> result = named_parameters_of(module);
  for (State& buffer : named_buffers_of(module))
    result.push_back(std::move(buffer));
  return result;
}

struct NamedPart {
  std::string name;  // "" for the module itself
  bool is_batch_norm = false;
};

bool is_batch_norm(const torch::nn::Module& part) {
  return part.as<torch::nn::BatchNorm1d>() != nullptr ||
         part.as<torch::nn::BatchNorm2d>() != nullptr ||
         part.as<torch::nn::BatchNorm3d>() != nullptr ||
         part.as<SyncBatchNorm>() != nullptr;
}

std::vector<NamedPart> parts_of(const ModuleRef& module) {
  std::vector<NamedPart> parts;
  if (module.plain != nullptr) {
    // The module itself is added apart from its parts: it need not be owned by
    // a shared_ptr.
    parts.push_back({"", is_batch_norm(*module.plain)});
    for (const auto& item :
         module.plain->named_modules(std::string(), /*include_self=*/false))
      parts.push_back({item.key(), is_batch_norm(*item.value())});
    return parts;
  }
  for (const auto& item : module.scripted->named_modules()) {
    const auto name = item.value.type()->name();
    parts.push_back(
        {item.name,
         name && name->name().find("BatchNorm") != std::string::npos});
  }
  return parts;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has(const std::vector<State>& tensors, const std::string& name) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const State& tensor) {
    return tensor.name == name;
  });
}

// If `part` is an embedding, notes whether its weight's gradient is row-sparse
// or a sparse tensor.
void note_embedding(const torch::nn::Module& part, std::vector<Param>& params) {
  const auto* embedding = part.as<torch::nn::Embedding>();
  const auto* bag = part.as<torch::nn::EmbeddingBag>();
  if (embedding == nullptr && bag == nullptr)
    return;
  const torch::Tensor& weight = embedding ? embedding->weight : bag->weight;
  for (Param& param : params) {
    if (!param.tensor.is_same(weight))
      continue;
    param.is_row_sparse = param.is_row_sparse || embedding != nullptr;
    param.has_sparse_gradient =
        param.has_sparse_gradient ||
        (embedding ? embedding->options.sparse() : bag->options.sparse());
  }
}

// Whether `name` is `part` or inside it.
bool is_inside(const std::string& name, const std::string& part) {
  return part.empty() || name == part || name.rfind(part + ".", 0) == 0;
}

}  // namespace

std::vector<Param> parameters_of(
    const ModuleRef& module,
    const std::vector<std::string>& ignore) {
  const std::vector<State> all = named_tensors_of(module);
  for (const std::string& name : ignore) {
    if (!has(all, name)) {
      throw UsageError(fmt::format(
          "[data_parallel] ignore names '{}', but the module has no parameter "
          "or buffer of that name; give full names, as named_parameters() does",
          name));
    }
  }
  // By tensor: the name of one that it shares memory with.
  std::unordered_map<const void*, std::string> sharers;
  const auto names = names_of_sharers(all);
  for (size_t i = 0; i < all.size(); ++i)
    sharers.emplace(all[i].tensor.unsafeGetTensorImpl(), names[i]);
  std::vector<Param> params;
  std::unordered_set<const void*> seen;
  for (const State& param : named_parameters_of(module)) {
    const void* impl = param.tensor.unsafeGetTensorImpl();
    if (has(ignore, param.name) || !seen.insert(impl).second)
      continue;
    params.push_back(
        {.name = param.name,
         .tensor = param.tensor,
         .shares_memory_with = sharers.at(impl)});
  }
  if (module.plain != nullptr) {
    // The module itself is looked at apart from its parts: it need not be owned
    // by a shared_ptr.
    note_embedding(*module.plain, params);
    for (const auto& part : module.plain->modules(/*include_self=*/false))
      note_embedding(*part, params);
  }
  return params;
}

std::vector<State> buffers_of(
    const ModuleRef& module,
    const std::vector<std::string>& ignore) {
  std::vector<State> buffers = named_buffers_of(module);
  std::erase_if(buffers, [&](const State& buffer) {
    return !buffer.tensor.defined() || has(ignore, buffer.name);
  });
  return buffers;
}

std::vector<std::string> kept_names(
    const ModuleRef& module,
    const std::vector<std::string>& names) {
  const std::vector<State> tensors = named_tensors_of(module);
  std::vector<std::string> places = names;
  const auto parts = parts_of(module);
  for (const std::string& name : names) {
    const bool is_part =
        std::any_of(parts.begin(), parts.end(), [&](const NamedPart& part) {
          return part.name == name;
        });
    if (!is_part && !has(tensors, name)) {
      throw UsageError(fmt::format(
          "[data_parallel] mixed precision is to keep '{}', but the module has "
          "no part, parameter or buffer of that name; give full names, as "
          "named_modules() and named_parameters() do",
          name));
    }
  }
  for (const NamedPart& part : parts) {
    if (part.is_batch_norm)
      places.push_back(part.name);
  }
  std::vector<std::string> kept;
  for (const State& tensor : tensors) {
    if (std::any_of(places.begin(), places.end(), [&](const auto& place) {
          return is_inside(tensor.name, place);
        }))
      kept.push_back(tensor.name);
  }
  return kept;
}

std::function<void()> make_check_of_layers(const ModuleRef& module) {
  if (module.plain == nullptr)
    return {};
  std::vector<const void*> known;
  for (const torch::Tensor& param : module.plain->parameters())
    known.push_back(param.unsafeGetTensorImpl());
  return [plain = module.plain, known = std::move(known)] {
    const auto params = plain->parameters();
    const auto is_known = [](const torch::Tensor& param, const void* impl) {
      return param.unsafeGetTensorImpl() == impl;
    };
    if (std::equal(
            params.begin(), params.end(), known.begin(), known.end(), is_known))
      return;
    for (const auto& item : plain->named_parameters()) {
      if (item.value().requires_grad() &&
          std::find(
              known.begin(), known.end(), item.value().unsafeGetTensorImpl()) ==
              known.end()) {
        throw UsageError(fmt::format(
            "[data_parallel] parameter '{}' came to the module after it was "
            "wrapped, and is not synchronised: add layers before wrapping, or "
            "wrap again",
            item.key()));
      }
    }
  };
}

bool has_sync_batch_norm(const ModuleRef& module) {
  if (module.plain == nullptr)
    return false;
  const auto parts = module.plain->modules(/*include_self=*/false);
  return module.plain->as<SyncBatchNorm>() != nullptr ||
         std::any_of(parts.begin(), parts.end(), [](const auto& part) {
           return part->template as<SyncBatchNorm>() != nullptr;
         });
}

void broadcast_buffers(
    const std::vector<State>& buffers,
    Communicator& communicator,
    int root) {
  std::vector<torch::Tensor> tensors;
  for (const State& buffer : buffers)
    tensors.push_back(buffer.tensor);
  broadcast_tensors(tensors, root, communicator);
}

}  // namespace brigade
