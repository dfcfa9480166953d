// Calls back when autograd has handled a parameter's gradient. The only file
// that touches AccumulateGrad.
//
// The calls for each parameter and each backward that reaches it:
//   before(i)  the incoming gradient is complete, .grad is as it was
//   after(i)   AccumulateGrad has added it to .grad (or has done nothing,
//              when a fused op added it to main_grad itself)
// torch::autograd::grad() calls neither: it adds nothing. Both run on the
// thread of backward that has the parameter's device: on the CPU the one that
// called backward(), on a GPU one of autograd's, with the stream that made the
// gradient as its current one. Exceptions in them reach the caller of
// backward(). In the first backward after torch::load() has replaced a
// parameter's memory, after(i) is called when that backward ends.
#pragma once

#include <torch/types.h>

#include <functional>
#include <list>
#include <memory>
#include <span>

#include "brigade/ops/libtorch_versions.h"
#include "brigade/param/param_memory.h"

namespace brigade {

// What a backward brings to a parameter.
enum class Arrival {
  kGradient,
  kNothing,  // a fused op has added it to main_grad already
};

class GradHooks {
 public:
  // Called on the thread of backward before and after the accumulation of a
  // gradient.
  struct Callbacks {
    std::function<void(int param, Arrival arrival)> before;
    std::function<void(int param)> after;
  };

  // Precondition: has_grad_hooks() is false for all of them.
  GradHooks(std::span<const Param> params, Callbacks callbacks);
  // Removes the hooks. Not called during a backward.
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

 private:
  struct Attached;

  void attach(Attached& attached);
  static void detach(Attached& attached);
  void find_new_accumulators(Attached& attached);
  void after(Attached& attached);

  Callbacks callbacks_;
  std::list<Attached> attached_;  // hooks refer to its elements
};

// Replaces the data of a leaf, also by data of another dtype, as set_data()
// does, but keeps the leaf's accumulator and with it the hooks and the dtype in
// which gradients arrive. Returns the accumulator, which lives as long as
// somebody holds it; null for a leaf that requires no gradient.
ops::NodePtr stand_in_for_data(torch::Tensor& leaf, const torch::Tensor& data);

// Whether a parameter's module is wrapped.
bool has_grad_hooks(const torch::Tensor& param);

// Notes on the tensor itself which flat memory a leaf of OwnedLeaves is a view
// of, so that it is known even if the optimizer's DataParallel is gone, or is
// another one. Called once for each leaf.
void set_owner(
    const torch::Tensor& leaf,
    std::shared_ptr<const FlatMemory> owner);
// The memory that set_owner() noted; null for a tensor that is no such leaf.
std::shared_ptr<const FlatMemory> owner_of(const torch::Tensor& tensor);

// Runs `callback` on the current thread when the backward that is under way
// ends, before backward() returns. Must be called from inside a hook. In a
// nested backward that runs as ops::NestedBackward, as recompute()'s does
// (activation checkpointing), it waits for the end of the outermost one; in
// another nested backward for that one's own.
void at_end_of_backward(std::function<void()> callback);

// Calls `on_gradient` with each gradient that the torch::autograd::grad() under
// way will return. Must be called from inside a hook.
void at_captured_gradients(
    const std::function<void(const torch::Tensor&)>& on_gradient);

// Something that is done once at the end of a backward whose hooks ask for it.
// Used on the thread of backward; forget() between backwards.
class EndOfBackward {
 public:
  // As at_end_of_backward(), but only once however often it is called in one
  // backward.
  void call_once(std::function<void()> callback);
  // Whether the end is still to come.
  bool is_awaited() const { return is_awaited_; }
  // Throws UsageError if it never came because an exception ended that
  // backward.
  void throw_if_broken_off() const;
  // Stops waiting for it: the step was given up.
  void forget() { is_awaited_ = false; }

 private:
  bool is_awaited_ = false;
  // The callback that waits in autograd is destroyed with the backward,
  // whatever ends it.
  std::weak_ptr<const bool> waiting_;
};

}  // namespace brigade
