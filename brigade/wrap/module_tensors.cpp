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
#include "brigade/data_parallel/shared_memory.h"
#include "brigade/wrap/sync_batch_norm.h"

namespace brigade {
namespace {

std::vector<State> named_parameters_of(const torch::nn::Module& module) {
  std::vector<State> result;
  for (const auto& item : module.named_parameters())
    result.push_back({item.key(), item.value()});
  return result;
}

std::vector<State> named_parameters_of(const torch::jit::Module& module) {
  std::vector<State> result;
  for (const auto& item : module.named_parameters())
    result.push_back({item.name, item.value});
  return result;
}

std::vector<State> named_buffers_of(const torch::nn::Module& module) {
  std::vector<State> result;
  for (const auto& item : module.named_buffers())
    result.push_back({item.key(), item.value()});
  return result;
}

std::vector<State> named_buffers_of(const torch::jit::Module& module) {
  std::vector<State> result;
  for (const auto& item : module.named_buffers())
    result.push_back({item.name, item.value});
  return result;
}

struct NamedPart {
  std::string name;  // "" of the module itself
  bool is_batch_norm = false;
};

bool is_batch_norm(const torch::nn::Module& part) {
  return part.as<torch::nn::BatchNorm1d>() != nullptr ||
         part.as<torch::nn::BatchNorm2d>() != nullptr ||
         part.as<torch::nn::BatchNorm3d>() != nullptr ||
         part.as<SyncBatchNorm>() != nullptr;
}

std::vector<NamedPart> parts_of(const torch::nn::Module& module) {
  // Apart: it need not be owned by a shared_ptr.
  std::vector<NamedPart> parts{{"", is_batch_norm(module)}};
  for (const auto& item :
       module.named_modules(std::string(), /*include_self=*/false))
    parts.push_back({item.key(), is_batch_norm(*item.value())});
  return parts;
}

std::vector<NamedPart> parts_of(const torch::jit::Module& module) {
  std::vector<NamedPart> parts;
  for (const auto& item : module.named_modules()) {
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

// By tensor, of all of a module: with what it shares memory.
template <typename Module>
std::unordered_map<const void*, std::string> sharers_of(const Module& module) {
  auto all = named_parameters_of(module);
  for (const State& buffer : named_buffers_of(module))
    all.push_back(buffer);
  const auto names = names_of_sharers(all);
  std::unordered_map<const void*, std::string> sharers;
  for (size_t i = 0; i < all.size(); ++i)
    sharers.emplace(all[i].tensor.unsafeGetTensorImpl(), names[i]);
  return sharers;
}

template <typename Module>
std::vector<Param> params_of(
    const Module& module,
    const std::vector<std::string>& ignore) {
  const auto all = named_parameters_of(module);
  const auto buffers = named_buffers_of(module);
  for (const std::string& name : ignore) {
    if (!has(all, name) && !has(buffers, name)) {
      throw ConfigError(fmt::format(
          "[data_parallel] ignore names '{}', but the module has no parameter "
          "or buffer of that name; give full names, as named_parameters() does",
          name));
    }
  }
  std::vector<Param> params;
  const auto sharers = sharers_of(module);
  std::unordered_set<const void*> seen;
  for (const State& param : all) {
    const void* impl = param.tensor.unsafeGetTensorImpl();
    if (has(ignore, param.name) || !seen.insert(impl).second)
      continue;
    params.push_back(
        {.name = param.name,
         .tensor = param.tensor,
         .shares_memory_with = sharers.at(impl)});
  }
  return params;
}

// What an embedding does to its weight's gradients.
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

template <typename Module>
std::vector<State> defined_buffers_of(
    const Module& module,
    const std::vector<std::string>& ignore) {
  std::vector<State> buffers;
  for (const State& buffer : named_buffers_of(module)) {
    if (buffer.tensor.defined() && !has(ignore, buffer.name))
      buffers.push_back({buffer.name, buffer.tensor});
  }
  return buffers;
}

// Whether `name` is `part` or inside of it.
bool is_inside(const std::string& name, const std::string& part) {
  return part.empty() || name == part || name.rfind(part + ".", 0) == 0;
}

template <typename Module>
std::vector<std::string> names_kept_of(
    const Module& module,
    const std::vector<std::string>& names) {
  std::vector<State> tensors = named_parameters_of(module);
  for (const State& buffer : named_buffers_of(module))
    tensors.push_back(buffer);
  std::vector<std::string> places = names;
  const auto parts = parts_of(module);
  for (const std::string& name : names) {
    const bool is_part =
        std::any_of(parts.begin(), parts.end(), [&](const NamedPart& part) {
          return part.name == name;
        });
    if (!is_part && !has(tensors, name)) {
      throw ConfigError(fmt::format(
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

}  // namespace

std::vector<Param> parameters_of(
    const torch::nn::Module& module,
    const std::vector<std::string>& ignore) {
  std::vector<Param> params = params_of(module, ignore);
  // Apart: it need not be owned by a shared_ptr.
  note_embedding(module, params);
  for (const auto& part : module.modules(/*include_self=*/false))
    note_embedding(*part, params);
  return params;
}

std::vector<Param> parameters_of(
    const torch::jit::Module& module,
    const std::vector<std::string>& ignore) {
  return params_of(module, ignore);
}

std::vector<State> buffers_of(
    const torch::nn::Module& module,
    const std::vector<std::string>& ignore) {
  return defined_buffers_of(module, ignore);
}

std::vector<State> buffers_of(
    const torch::jit::Module& module,
    const std::vector<std::string>& ignore) {
  return defined_buffers_of(module, ignore);
}

std::vector<std::string> kept_names(
    const torch::nn::Module& module,
    const std::vector<std::string>& names) {
  return names_kept_of(module, names);
}

std::vector<std::string> kept_names(
    const torch::jit::Module& module,
    const std::vector<std::string>& names) {
  return names_kept_of(module, names);
}

std::function<void()> make_check_of_layers(const torch::nn::Module& module) {
  std::vector<const void*> known;
  for (const torch::Tensor& param : module.parameters())
    known.push_back(param.unsafeGetTensorImpl());
  return [&module, known = std::move(known)] {
    const auto params = module.parameters();
    const auto is_known = [](const torch::Tensor& param, const void* impl) {
      return param.unsafeGetTensorImpl() == impl;
    };
    if (std::equal(
            params.begin(), params.end(), known.begin(), known.end(), is_known))
      return;
    for (const auto& item : module.named_parameters()) {
      if (item.value().requires_grad() &&
          std::find(
              known.begin(), known.end(), item.value().unsafeGetTensorImpl()) ==
              known.end()) {
        throw ConfigError(fmt::format(
            "[data_parallel] parameter '{}' came to the module after it was "
            "wrapped, and is not synchronised: add layers before wrapping, or "
            "wrap again",
            item.key()));
      }
    }
  };
}

std::function<void()> make_check_of_layers(
    const torch::jit::Module& /*module*/) {
  return {};
}

bool has_sync_batch_norm(const torch::nn::Module& module) {
  const auto parts = module.modules(/*include_self=*/false);
  return module.as<SyncBatchNorm>() != nullptr ||
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
