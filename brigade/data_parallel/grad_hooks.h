// Calls back when autograd has handled a parameter's gradient. The only file
// that touches AccumulateGrad.
//
// For each parameter and each backward that reaches it:
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
#include <vector>

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
  // Called on the thread of backward, around the accumulation of a gradient.
  struct Callbacks {
    std::function<void(int param, Arrival arrival)> before;
    std::function<void(int param)> after;
  };

  // Precondition: has_grad_hooks() of none of them.
  GradHooks(std::span<const Param> params, Callbacks callbacks);
  // Removes the hooks. Not during a backward.
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

// Gives a leaf other data, also of another dtype, in place of its own: as
// set_data(), but autograd's accumulator and with it the hooks and the dtype in
// which gradients arrive stay those of the leaf. Returns the accumulator, which
// lives as long as somebody holds it.
ops::NodePtr stand_in_for_data(torch::Tensor& leaf, const torch::Tensor& data);

// Whether a parameter's module is wrapped.
bool has_grad_hooks(const torch::Tensor& param);

// Notes which flat memory a leaf of OwnedLeaves is a view of, on the
// tensor itself: so it is known of an optimizer whose DataParallel is gone, or
// is another one. Once for each leaf.
void set_owner(
    const torch::Tensor& leaf,
    std::shared_ptr<const FlatMemory> owner);
// Null for a tensor that is no such leaf.
std::shared_ptr<const FlatMemory> owner_of(const torch::Tensor& tensor);

// Runs `callback` on the current thread when the backward that is under way
// ends, before backward() returns. To be called from inside a hook. In a nested
// backward that is the outermost one's end, if it runs as ops::NestedBackward,
// as recompute()'s does; otherwise its own.
void at_end_of_backward(std::function<void()> callback);

// In a backward that torch::autograd::grad() runs: calls `on_gradient` with each
// gradient that it will return. To be called from inside a hook.
void at_captured_gradients(
    const std::function<void(const torch::Tensor&)>& on_gradient);

// What is to be done once at the end of a backward whose hooks ask for it. Used
// on the thread of backward, forget() between backwards.
class EndOfBackward {
 public:
  // As at_end_of_backward(), however often it is called in one backward.
  void call_once(std::function<void()> callback);
  // The end is still to come.
  bool is_awaited() const { return is_awaited_; }
  // ConfigError where it never came: an exception ended that backward.
  void throw_if_broken_off() const;
  // Awaits it no longer: the step was given up.
  void forget() { is_awaited_ = false; }

 private:
  bool is_awaited_ = false;
  // What waits in autograd is gone with the backward, whatever ends it.
  std::weak_ptr<const bool> waiting_;
};

}  // namespace brigade
