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
#include <vector>

#include "brigade/ops/libtorch_versions.h"

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
  GradHooks(const std::vector<torch::Tensor>& params, Callbacks callbacks);
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

// Runs `callback` on the current thread when the backward that is under way
// ends, before backward() returns. To be called from inside a hook. In a nested
// backward that is the outermost one's end, if it runs as ops::NestedBackward,
// as recompute()'s does; otherwise its own.
void at_end_of_backward(std::function<void()> callback);

}  // namespace brigade
