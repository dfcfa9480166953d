// Data parallelism for any torch::nn::Module: the C++ counterpart of PyTorch's
// DistributedDataParallel.
//
//   brigade::World world = brigade::init_from_environment();
//   brigade::DataParallel model(net, world.data_parallel());
//   for (auto& batch : micro_batches) {
//     auto guard = model.accumulate_until_last(batch, micro_batches);
//     loss(model->forward(batch.data), batch.target).backward();
//   }
//   optimizer.step();
//
// The module may be a ModuleHolder (TORCH_MODULE), a std::shared_ptr, a
// Sequential or an AnyModule; it may share parameters, freeze some, and mix
// dtypes. Gradients are accumulated in fp32 and averaged over the ranks while
// the last micro-batch's backward runs. After it, param.grad() is the mean in
// the parameter's dtype, for any torch::optim optimizer; zero_grad() is not
// needed. With GradHandover::kMainGrad, Brigade's own AdamW (make_adamw())
// reads the fp32 gradients where the reduction left them.
//
// Life: made on every rank at once, after the module was moved to its dtype and
// before the optimizer; used by the thread that trains; destroyed on every
// rank, after which the module is an ordinary one again.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <memory>
#include <utility>
#include <vector>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/adamw.h"

namespace brigade {

// Parameters of a module by name, each tensor once however often it is
// registered; weights of torch::nn::Embedding are row-sparse.
std::vector<NamedParam> parameters_of(const torch::nn::Module& module);

// Makes rank 0's buffers everyone's. Collective.
void broadcast_buffers(
    const torch::nn::Module& module,
    Communicator& communicator);

// Brigade's AdamW over a sync's flat buffers (GradHandover::kMainGrad), one
// group a bucket. Rebuild it if sync.layout_version() has changed
// (BucketOrder::kObserved, after the first step).
AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options = {});

// While it lives, backwards accumulate and launch nothing.
class [[nodiscard]] NoSync {
 public:
  NoSync(GradSync& sync, bool accumulate_only)
      : sync_(&sync), before_(sync.accumulate_only()) {
    sync.set_accumulate_only(accumulate_only);
  }
  ~NoSync() { sync_->set_accumulate_only(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradSync* sync_;
  bool before_;
};

inline torch::nn::Module& module_of(torch::nn::AnyModule& module) {
  return *module.ptr();
}
template <typename Handle>
torch::nn::Module& module_of(Handle& handle) {
  return *handle;
}

template <typename Handle>
class DataParallel {
 public:
  // Collective; throws what GradSync's constructor throws.
  DataParallel(
      Handle module,
      const CommunicatorPtr& communicator,
      const GradSyncOptions& options = {})
      : module_(std::move(module)),
        sync_(parameters_of(module_of(module_)), communicator, options) {
    broadcast_buffers(module_of(module_), *communicator);
  }

  Handle& operator*() { return module_; }
  auto operator->() {
    if constexpr (std::is_same_v<Handle, torch::nn::AnyModule>)
      return &module_;
    else
      return &*module_;
  }
  torch::nn::Module& module() { return module_of(module_); }

  // For all micro-batches of a step but the last.
  NoSync no_sync() { return {sync_, true}; }
  // The same for an element of a container, by whether it is the last one.
  template <typename Element, typename Container>
  NoSync accumulate_until_last(
      const Element& element,
      const Container& container) {
    return {sync_, &element != &*std::prev(std::end(container))};
  }

  // Waits for the step's gradients. Implied at the end of the last backward
  // unless FinishMode::kExplicit was asked for.
  void finish() { sync_.finish(); }
  // Drops the step's gradients.
  void reset() {
    sync_.reset();
    if (sync_.options().handover == GradHandover::kMainGrad)
      sync_.zero_main_grads();
  }

  // Uneven inputs: call allow_uneven_inputs() on every rank before the first
  // step and join() when this rank has no more data. join() takes part in the
  // others' steps with nothing until all have joined; means are over the ranks
  // that had data.
  void allow_uneven_inputs() { sync_.set_uneven_inputs(true); }
  void join() { sync_.shadow_until_all_joined(); }

  // What the last step's communication cost.
  const SyncReport& report() const { return sync_.report(); }
  BucketedGradSync& sync() { return sync_; }

 private:
  Handle module_;
  BucketedGradSync sync_;
};

}  // namespace brigade
