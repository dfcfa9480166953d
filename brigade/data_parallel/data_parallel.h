// Data parallelism for any torch::nn::Module: the C++ counterpart of PyTorch's
// DistributedDataParallel.
//
//   brigade::World world = brigade::init_from_environment();
//   brigade::DataParallel model(net, world.data_parallel());
//   for (size_t i = 0; i < micro_batches.size(); ++i) {
//     auto guard = model.accumulate_until_last(i, micro_batches.size());
//     loss(model->forward(micro_batches[i].data), ...).backward();
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
// rank, after which the module is an ordinary one again (with
// Sharding::kParameters one without weights: save them before).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/data_parallel/grad_sync_factory.h"
#include "brigade/data_parallel/weight_watch.h"
#include "brigade/optim/adamw.h"

namespace brigade {

// How a module is wrapped; the same on all ranks.
struct WrapOptions {
  GradSyncAlgorithm sync = GradSyncAlgorithm::kBucketed;
  // Full names of parameters and buffers that are neither synchronised nor
  // broadcast, each rank's own. ConfigError where the module has no such name.
  std::vector<std::string> ignore;
  // Rank 0's buffers (BatchNorm's running means) become everyone's before each
  // DataParallel::forward() that trains outside no_sync(); always when
  // wrapping.
  bool broadcast_buffers = false;
  // Sharding::kParameters: full names of the submodules whose weights are
  // gathered together, in forward and in backward, and freed after. All that is
  // in none of them is one more. Empty: the children of each Sequential and
  // ModuleList (default_units()).
  std::vector<std::string> units;
};

// Parameters of a module by name, each tensor once however often it is
// registered; weights of torch::nn::Embedding are row-sparse.
std::vector<NamedParam> parameters_of(
    const torch::nn::Module& module,
    const std::vector<std::string>& ignore = {});

// The same, and with Sharding::kParameters each in its unit.
std::vector<NamedParam> parameters_of(
    const torch::nn::Module& module,
    const WrapOptions& wrap,
    Sharding sharding);

// Makes the buffers of `root` everyone's, but for the ignored. Collective.
void broadcast_buffers(
    const torch::nn::Module& module,
    Communicator& communicator,
    int root = 0,
    const std::vector<std::string>& ignore = {});

// What this rank owns of a sync's flat weights, as leaves whose .grad() is the
// owned part of the gradients: for a torch::optim optimizer that steps each
// element by itself (Adam, AdamW, SGD, RMSprop, Adagrad; not LBFGS). One per
// bucket. The sync hands over main_grad; its weights are float32 or float64.
// Step them by DataParallel::step(). Throws ConfigError otherwise.
std::vector<torch::Tensor> owned_parameters(const GradSync& sync);

// Brigade's AdamW over what this rank owns of a sync's flat buffers
// (GradHandover::kMainGrad), one group per bucket. Make it anew where
// sync.layout_version() has changed (BucketOrder::kObserved, after the first
// step): the old one's step() throws.
AdamW make_adamw(
    const GradSync& sync,
    double weight_decay,
    const AdamWOptions& options = {});

// See DataParallel::step().
void step_owned(GradSync& sync, torch::optim::Optimizer& optimizer);

// While it lives, backwards accumulate and launch nothing; with kReduce it
// changes nothing.
class [[nodiscard]] NoSync {
 public:
  // Whether the next backward is the step's last.
  enum class Mode { kAccumulate, kReduce };

  NoSync(GradSync& sync, Mode mode)
      : sync_(&sync), before_(sync.accumulate_only()) {
    sync.set_accumulate_only(mode == Mode::kAccumulate);
  }
  ~NoSync() { sync_->set_accumulate_only(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradSync* sync_;
  bool before_;
};

// For micro-batch `index` of `count`: kReduce for the last. ConfigError when
// there is no such micro-batch.
NoSync::Mode mode_of_micro_batch(size_t index, size_t count);

// The module that a handle refers to.
inline torch::nn::Module& module_of(torch::nn::AnyModule& module) {
  return *module.ptr();
}
// The module that a handle refers to.
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
      const GradSyncOptions& options = {},
      WrapOptions wrap = {})
      : module_(std::move(module)),
        wrap_(std::move(wrap)),
        sync_(make_grad_sync(
            wrap_.sync,
            parameters_of(module_of(module_), wrap_, options.sharding),
            communicator,
            options)) {
    if (ShardedWeights* weights = sync_->sharded_weights())
      watch_ = std::make_unique<WeightWatch>(*weights);
    broadcast_buffers_of(0);
  }

  Handle& operator*() { return module_; }
  auto operator->() {
    if constexpr (std::is_same_v<Handle, torch::nn::AnyModule>)
      return &module_;
    else
      return &*module_;
  }
  // The wrapped module itself.
  torch::nn::Module& module() { return module_of(module_); }

  // The module's forward(), after the broadcast of buffers where
  // WrapOptions::broadcast_buffers asks for it: collective then.
  // With sharding it waits for weights of other ranks; with kParameters each
  // unit is gathered when it is used, so that all ranks must use the same ones
  // in the same order, in backward too.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    sync_->wait_for_weights();
    if (wrap_.broadcast_buffers && torch::GradMode::is_enabled() &&
        !sync_->accumulate_only())
      broadcast_buffers_of(0);
    if (watch_ == nullptr)
      return (*this)->forward(std::forward<Inputs>(inputs)...);
    watch_->begin_forward();
    auto output = (*this)->forward(std::forward<Inputs>(inputs)...);
    watch_->end_forward();
    return output;
  }

  // For all micro-batches of a step but the last.
  NoSync no_sync() { return {*sync_, NoSync::Mode::kAccumulate}; }
  // The same for micro-batch `index` of a step's `count`, by whether it is the
  // last. Throws ConfigError unless index < count.
  NoSync accumulate_until_last(size_t index, size_t count) {
    return {*sync_, mode_of_micro_batch(index, count)};
  }

  // Waits for the step's gradients. Implied at the end of the last backward
  // unless FinishMode::kExplicit was asked for.
  void finish() { sync_->finish(); }
  // Sharding: one step of an optimizer over owned_parameters(), with gradients
  // scaled as GradSyncOptions::reduction says, which are cleared; then
  // gather_weights().
  void step(torch::optim::Optimizer& optimizer) {
    step_owned(*sync_, optimizer);
  }
  // Sharding: after the step of an optimizer by make_adamw(). Collective;
  // returns at once, and forward() waits.
  void gather_weights() { sync_->gather_weights(); }

  // Drops the step's gradients.
  void reset() {
    sync_->reset();
    if (sync_->options().handover == GradHandover::kMainGrad)
      sync_->zero_main_grads();
  }

  // Uneven inputs: call allow_uneven_inputs() on every rank before the first
  // step and join() when this rank has no more data. join() takes part in the
  // others' steps with zeros until all have joined; then every rank has the
  // parameters and buffers of the rank that joined last. States of optimizers
  // are each rank's own.
  void allow_uneven_inputs(const UnevenInputsOptions& options = {}) {
    sync_->allow_uneven_inputs(options);
  }
  // See allow_uneven_inputs(). Collective with the other ranks' steps.
  void join() { broadcast_buffers_of(sync_->join()); }

  // What the last step's communication cost.
  const SyncReport& report() const { return sync_->report(); }
  // What synchronises the gradients, for make_adamw() and tests.
  GradSync& sync() { return *sync_; }

 private:
  void broadcast_buffers_of(int root) {
    broadcast_buffers(
        module_of(module_), *sync_->communicator(), root, wrap_.ignore);
  }

  Handle module_;
  WrapOptions wrap_;
  std::unique_ptr<GradSync> sync_;
  std::unique_ptr<WeightWatch> watch_;  // Sharding::kParameters
};

}  // namespace brigade
