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
// Sequential, an AnyModule or a torch::jit::Module; it may share parameters,
// freeze some, and mix dtypes. Gradients are accumulated in fp32 and averaged
// over the ranks while the last micro-batch's backward runs. After it,
// param.grad() is the mean in the parameter's dtype, for any torch::optim
// optimizer. A further backward before its step adds to it; after the step
// zero_grad() may be left out. With GradHandover::kMainGrad, Brigade's
// own optimizers (make_adamw() and others) read the fp32 gradients where the
// reduction left them.
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/data_parallel/clip_grad.h"
#include "brigade/optim/adamw.h"
#include "brigade/optim/owned_parameters.h"
#include "brigade/optim/step_in_backward.h"
#include "brigade/wrap/compute_copies.h"
#include "brigade/wrap/forward_casts.h"
#include "brigade/wrap/gather_observer.h"
#include "brigade/wrap/lora.h"
#include "brigade/wrap/mixed_precision.h"
#include "brigade/wrap/module_tensors.h"
#include "brigade/wrap/weight_observer.h"

namespace brigade {

// How a module is wrapped; the same on all ranks.
struct WrapOptions {
  GradSyncAlgorithm sync = GradSyncAlgorithm::kBucketed;
  // Full names of parameters and buffers that are not synchronised and not
  // broadcast: each rank keeps its own. Wrapping throws UsageError if the
  // module has no such name.
  std::vector<std::string> ignore;
  // Rank 0's buffers (BatchNorm's running means) become everyone's before each
  // DataParallel::forward() that trains outside no_sync(); they always do when
  // wrapping.
  bool broadcast_buffers = false;
  // Sharding::kParameters (FSDP): full names of the submodules whose weights
  // are gathered together, in forward and in backward, and freed afterwards.
  // Parameters outside of them form one more unit. Empty: the children of each
  // Sequential and ModuleList (default_units()).
  std::vector<std::string> units;
  // forward() and its backward compute with 16-bit copies of the parameters.
  // Unset: with the parameters.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
};

// The objects that a wrapped module needs.
struct Wrapped {
  std::unique_ptr<ComputeCopies> copies;  // null: no mixed precision
  std::unique_ptr<GradSync> sync;         // gone before the copies
};

// Collective. Throws what GradSync's constructor throws, CommError if ranks
// differ in `wrap` or in buffers, and UsageError for a mixed precision that
// cannot be. `kept`: see kept_names().
Wrapped wrap_tensors(
    std::vector<Param> params,
    const std::vector<State>& buffers,
    const std::vector<std::string>& kept,
    const CommunicatorPtr& communicator,
    GradSyncOptions options,
    const WrapOptions& wrap);

// Parameters by name, and with Sharding::kParameters each in its unit. A
// scripted module is one unit; throws UsageError if others are named.
std::vector<Param> parameters_of(
    const ModuleRef& module,
    const WrapOptions& wrap,
    Sharding sharding);

// Throws UsageError if forward, which only ranks with data run, is collective:
// with broadcast buffers, or if `module` has a SyncBatchNorm.
void check_uneven_inputs(const ModuleRef& module, const WrapOptions& wrap);

// Throws UsageError: mixed precision cannot see the tensors that forward()
// returns.
[[noreturn]] void throw_unseen_output();

// While it lives, backwards only accumulate (gradient accumulation) and launch
// nothing; with kReduce it changes nothing, also inside another one. Several
// may end in any order, but before their DataParallel.
class [[nodiscard]] NoSync {
 public:
  // Whether the next backward is the step's last.
  enum class Mode { kAccumulate, kReduce };

  NoSync(GradSync& sync, Mode mode)
      : sync_(mode == Mode::kAccumulate ? &sync : nullptr) {
    if (sync_ != nullptr)
      sync_->hold_reduction();
  }
  ~NoSync() {
    if (sync_ != nullptr)
      sync_->release_reduction();
  }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  GradSync* sync_;  // null: kReduce
};

// The mode of micro-batch `index` of `count`: kReduce for the last. Throws
// UsageError unless index < count.
NoSync::Mode mode_of_micro_batch(size_t index, size_t count);

// The module that a handle refers to.
inline torch::nn::Module& module_of(torch::nn::AnyModule& module) {
  return *module.ptr();
}
// The module that a handle refers to: itself.
inline torch::jit::Module& module_of(torch::jit::Module& module) {
  return module;
}
// The module that a handle refers to.
template <typename Handle>
torch::nn::Module& module_of(Handle& handle) {
  return *handle;
}

template <typename Handle>
class DataParallel {
 public:
  // Collective. Throws what wrap_tensors(), parameters_of() and kept_names()
  // throw.
  DataParallel(
      Handle module,
      const CommunicatorPtr& communicator,
      const GradSyncOptions& options = {},
      WrapOptions wrap = {})
      : module_(std::move(module)),
        ranks_(communicator),
        wrap_(std::move(wrap)),
        wrapped_(wrap_tensors(
            parameters_of(module_of(module_), wrap_, options.sharding),
            buffers_of(module_of(module_), wrap_.ignore),
            wrap_.mixed_precision
                ? kept_names(module_of(module_), wrap_.mixed_precision->keep)
                : std::vector<std::string>(),
            communicator,
            options,
            wrap_)) {
    if constexpr (!kIsScripted)
      lora_ = lora_of(module_of(module_));
    if (ComputeCopies* copies = wrapped_.copies.get())
      wrapped_.sync->before_handover([copies] { copies->restore(); });
    wrapped_.sync->before_step(make_check_of_layers(module_of(module_)));
    if (ShardedWeights* weights = wrapped_.sync->weights().units())
      weight_observer_ = std::make_unique<WeightObserver>(*weights);
    // Mixed precision makes the copies of all weights at once.
    else if (
        options.gather == GatherMode::kOverlapForward &&
        options.sharding != Sharding::kNone && !wrapped_.copies)
      gather_observer_ = std::make_unique<GatherObserver>(*wrapped_.sync);
    broadcast_buffers_of(0);
  }
  DataParallel(DataParallel&&) noexcept = default;
  // What it held before goes as in the destructor: what watches its weights
  // before them.
  DataParallel& operator=(DataParallel other) noexcept {
    std::swap(module_, other.module_);
    std::swap(ranks_, other.ranks_);
    std::swap(wrap_, other.wrap_);
    std::swap(wrapped_, other.wrapped_);
    std::swap(lora_, other.lora_);
    std::swap(weight_observer_, other.weight_observer_);
    std::swap(gather_observer_, other.gather_observer_);
    return *this;
  }

  // The module and its parts. With GatherMode::kOverlapForward these wait for
  // weights that are being gathered, as forward() does.
  Handle& operator*() {
    wrapped_.sync->weights().need_all();
    return module_;
  }
  auto operator->() {
    wrapped_.sync->weights().need_all();
    return target();
  }
  // The wrapped module itself.
  auto& module() { return module_of(**this); }

  // The module's forward(), after the broadcast of buffers if
  // WrapOptions::broadcast_buffers asks for it: collective then. Applies the
  // adapters that the module has (Lora::apply()). With
  // GatherMode::kOverlapForward each operation waits for the weights that it
  // reads (GatherObserver); with mixed precision forward() waits for all at its
  // start. With kParameters each unit is gathered when it is used, so that all
  // ranks must use the same ones in the same order, in backward too. With mixed
  // precision it computes with the copies, which operator->'s forward() does
  // not.
  template <typename... Inputs>
  auto forward(Inputs&&... inputs) {
    before_forward();
    if (weight_observer_ != nullptr) {
      WeightObserver::InForward in_forward(*weight_observer_);
      lora_.apply();
      auto output = (*this)->forward(std::forward<Inputs>(inputs)...);
      in_forward.end();
      if constexpr (!kIsScripted)
        visit_tensors(output, [this](const torch::Tensor& tensor) {
          weight_observer_->observe_backward(tensor);
        });
      return output;
    }
    if (wrapped_.copies == nullptr) {
      GatherObserver::InForward in_forward(gather_observer_.get());
      lora_.apply();
      auto output = target()->forward(std::forward<Inputs>(inputs)...);
      in_forward.end();
      return output;
    }
    const MixedPrecision& precision = *wrap_.mixed_precision;
    const ComputeCopies::InForward in_forward(*wrapped_.copies);
    lora_.apply();
    const auto run = [this](auto&&... cast) {
      return (*this)->forward(pass_like<Inputs>(cast)...);
    };
    auto output = run(
        cast_input(std::forward<Inputs>(inputs), precision.input_dtype())...);
    const bool saw_all = visit_tensors(output, [&](torch::Tensor& tensor) {
      wrapped_.copies->watch(tensor);
      if (precision.output_dtype)
        tensor = cast_floating(tensor, *precision.output_dtype);
    });
    if (!saw_all)
      throw_unseen_output();
    return output;
  }
  // The forward() of a torch::jit::Module, so that `model.forward({x})`
  // compiles.
  c10::IValue forward(std::vector<c10::IValue> inputs) requires(
      std::is_same_v<Handle, torch::jit::Module>) {
    return forward<std::vector<c10::IValue>>(std::move(inputs));
  }

  // Held during all micro-batches of a step but the last, as DDP's no_sync().
  NoSync no_sync() { return {*wrapped_.sync, NoSync::Mode::kAccumulate}; }
  // The same for micro-batch `index` of a step's `count`, by whether it is the
  // last. Throws UsageError unless index < count.
  NoSync accumulate_until_last(size_t index, size_t count) {
    return {*wrapped_.sync, mode_of_micro_batch(index, count)};
  }

  // Waits for the step's gradients. Implied at the end of the last backward
  // unless FinishMode::kExplicit was asked for.
  void finish() { wrapped_.sync->finish(); }
  // With sharding: one step of an optimizer over owned_parameters(), with
  // gradients scaled as GradSyncOptions::reduction says and then cleared,
  // followed by gather_weights(). Several optimizers, each over some
  // parameters, step one after the other. Unless gradients are divided, the
  // optimizer may be over the module's own parameters as well; otherwise this
  // throws UsageError naming one of these. Throws UsageError too if .grad()
  // was changed since backward (see GradSync::check_before_step()).
  void step(torch::optim::Optimizer& optimizer) {
    step_owned(*wrapped_.sync, optimizer);
  }
  // See brigade::clip_grad_norm(). Called after backward, before the step.
  double clip_grad_norm(double max_norm) {
    return brigade::clip_grad_norm(*wrapped_.sync, max_norm);
  }
  // See brigade::clip_grad_value(). Called after backward, before the step.
  void clip_grad_value(double max_value) {
    brigade::clip_grad_value(*wrapped_.sync, max_value);
  }
  // With sharding: called after the step of an optimizer by make_adamw().
  // Collective; returns with all weights in place unless
  // GradSyncOptions::gather is kOverlapForward.
  void gather_weights() { wrapped_.sync->gather_weights(); }

  // From the next step on `optimizer` steps each bucket's parameters as soon as
  // their gradients are reduced, while backward goes on; nothing is left to
  // step afterwards. With MissingGradient::kZero each synchronised backward()
  // is a whole step, unless FinishMode::kExplicit says where it ends. Throws
  // UsageError for LBFGS, for an optimizer that lacks a parameter, and with
  // kMainGrad, sharding or GradSyncAlgorithm::kPerParam. The optimizer outlives
  // this object.
  void step_in_backward(torch::optim::Optimizer& optimizer) {
    std::function<void(const torch::Tensor&)> before_step;
    if (ComputeCopies* copies = wrapped_.copies.get())
      before_step = [copies](const torch::Tensor& p) { copies->restore(p); };
    bucketed("step_in_backward()")
        .set_bucket_step(make_bucket_step(
            *wrapped_.sync, optimizer, std::move(before_step)));
  }
  // The same with kMainGrad and an optimizer made by make_adamw() or a similar
  // function that steps its groups apart
  // (Optimizer::check_steps_groups_apart()), and this learning rate, or one for
  // each of its parameter groups; call it again to change rates.
  void step_in_backward(Optimizer& optimizer, double lr) {
    bucketed("step_in_backward()")
        .set_bucket_step(make_bucket_step(*wrapped_.sync, optimizer, lr));
  }
  // See above.
  void step_in_backward(Optimizer& optimizer, const std::vector<double>& lrs) {
    bucketed("step_in_backward()")
        .set_bucket_step(make_bucket_step(*wrapped_.sync, optimizer, lrs));
  }
  // The optimizer is stepped by hand again.
  void step_after_backward() {
    bucketed("step_after_backward()").set_bucket_step(nullptr);
  }

  // Drops the step's gradients of synchronised parameters: .grad() becomes
  // none, with kMainGrad zero.
  // After an exception in backward, call it before anything else.
  void reset() {
    if (wrapped_.copies)
      wrapped_.copies->restore();
    wrapped_.sync->reset();
    if (wrapped_.sync->options().handover == GradHandover::kMainGrad) {
      wrapped_.sync->zero_main_grads();
      return;
    }
    for (const Param& param : wrapped_.sync->params())
      param.tensor.mutable_grad().reset();
  }

  // Uneven inputs: call allow_uneven_inputs() on every rank before the first
  // step and join() when this rank has no more data. join() takes part in the
  // others' steps with zeros until all have joined; then every rank has the
  // parameters and buffers of the rank that joined last. States of optimizers
  // are each rank's own. Throws UsageError with sharding, and if forward is
  // collective (broadcast buffers, SyncBatchNorm): the ranks that have joined
  // run none.
  void allow_uneven_inputs(const UnevenInputsOptions& options = {}) {
    check_uneven_inputs(module_of(module_), wrap_);
    bucketed("allow_uneven_inputs()").allow_uneven_inputs(options);
  }
  // See allow_uneven_inputs(). Collective with the other ranks' steps.
  void join() { broadcast_buffers_of(bucketed("join()").join()); }

  // The communication of the last step and its times.
  const SyncReport& report() const { return wrapped_.sync->report(); }
  // The object that synchronises the gradients, needed by make_adamw() and
  // tests.
  GradSync& sync() { return *wrapped_.sync; }

 private:
  static constexpr bool kIsScripted =
      std::is_same_v<Handle, torch::jit::Module>;

  BucketedGradSync& bucketed(const char* function) {
    return as_bucketed(*wrapped_.sync, function);
  }
  // The object whose forward() is called.
  auto target() {
    if constexpr (std::is_same_v<Handle, torch::nn::AnyModule> || kIsScripted)
      return &module_;
    else
      return &*module_;
  }
  void before_forward() {
    if (!gather_observer_)
      wrapped_.sync->weights().need_all();
    if (torch::GradMode::is_enabled())
      wrapped_.sync->drop_cleared_gradients();
    if (wrap_.broadcast_buffers && torch::GradMode::is_enabled() &&
        !wrapped_.sync->accumulate_only())
      broadcast_buffers_of(0);
  }
  void broadcast_buffers_of(int root) {
    broadcast_buffers(
        buffers_of(module_of(module_), wrap_.ignore), *ranks_, root);
  }

  Handle module_;
  CommunicatorPtr ranks_;  // that wrap it
  WrapOptions wrap_;
  Wrapped wrapped_;
  Lora lora_;
  std::unique_ptr<WeightObserver> weight_observer_;  // Sharding::kParameters
  std::unique_ptr<GatherObserver> gather_observer_;  // kOverlapForward
};

}  // namespace brigade
