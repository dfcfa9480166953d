// The parameters and buffers, by name, of a module that can be wrapped: a
// torch::nn::Module or a torch::jit::Module.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"
#include "brigade/param/state.h"

namespace torch::jit {
struct Module;
}  // namespace torch::jit

namespace brigade {

// Refers to a module that can be wrapped, which outlives it.
struct ModuleRef {
  ModuleRef(const torch::nn::Module& module) : plain(&module) {}
  ModuleRef(const torch::jit::Module& module) : scripted(&module) {}
  const torch::nn::Module* plain = nullptr;  // null: it is the other
  const torch::jit::Module* scripted = nullptr;
};

// Parameters of a module by name, each tensor once however often it is
// registered. Weights of torch::nn::Embedding are marked row-sparse; sparse
// gradients are known for torch::nn::Embedding and EmbeddingBag. Throws
// UsageError if `ignore` has a name that the module does not have.
std::vector<Param> parameters_of(
    const ModuleRef& module,
    const std::vector<std::string>& ignore = {});

// Buffers under their full names, except ignored and undefined ones.
std::vector<State> buffers_of(
    const ModuleRef& module,
    const std::vector<std::string>& ignore = {});

// Full names of the parameters and buffers of batch normalisation, and of those
// that `names` lists or whose module it lists. Throws UsageError if `names`
// has a name that the module does not have.
std::vector<std::string> kept_names(
    const ModuleRef& module,
    const std::vector<std::string>& names);

// Returns a function that throws UsageError naming a parameter that trains and
// that the wrapped module did not have when the function was made. Empty for a
// scripted module, whose layers cannot change.
std::function<void()> make_check_of_layers(const ModuleRef& module);

// Whether forward is collective, because a part is a SyncBatchNorm.
bool has_sync_batch_norm(const ModuleRef& module);

// Collective: every rank gets the buffers of `root`.
void broadcast_buffers(
    const std::vector<State>& buffers,
    Communicator& communicator,
    int root = 0);

}  // namespace brigade
