// Connects a parameter's .grad, where autograd writes and an optimizer or the
// user reads, with its main_grad, where the gradients of micro-batches are
// summed in fp32 and those of ranks are reduced.
//
// The calls for each parameter and step:
//   before_accumulate, after_accumulate   each backward that reaches it
//   finalize     no gradient will be added: main_grad may be reduced, .grad is
//                hidden
//   give         main_grad is reduced: .grad is what the optimizer reads
//   keep_share   nobody has used it: further gradients will be added
// A user who changes .grad between two backwards (clears it, clips it) changes
// what has been accumulated; for 16-bit parameters this is found by comparing
// values.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "brigade/data_parallel/step_progress.h"
#include "brigade/param/param_memory.h"

namespace brigade {

// Which one of a step's gradients of a parameter it is.
enum class GradPart {
  kFirst,    // whatever .grad and main_grad hold is the last step's
  kFurther,  // it is added to the step's earlier ones
};

// Whether any rank of the group has a gradient of the parameter in this step.
enum class GradUse { kUsed, kUnused };

// What a user did to the .grad of all parameters: nothing, cleared each to
// none, or something else.
enum class GradClearing { kNone, kAll, kSome };

// What a hand-over works on, which outlives it.
struct HandoverParts {
  ParamMemory& memory;  // their main_grads
  // The factor of a mean for a parameter's sum over ranks in this step; 1 for a
  // sum.
  std::function<double(int param)> mean_scale_of;
  // The same over all ranks: the one scale that an optimizer applies.
  std::function<double()> mean_scale;
  StepProgress& progress;
};

class Handover {
 public:
  virtual ~Handover() = default;

  // A gradient was reduced and handed over, and now others will be added to it
  // and all reduced again: each of `ranks` ranks keeps such a part of it that
  // their sum is the same gradient, so that what a user made of .grad counts.
  // Returns whether there is a gradient: .grad may have been cleared. Throws
  // UsageError if a fused op has added to it already.
  virtual bool keep_share(int param, int ranks) = 0;
  // A fused op has added to main_grad, before any hook.
  virtual void note_fused() {}
  // AccumulateGrad is about to add a gradient to .grad.
  virtual void before_accumulate(int param, GradPart part) = 0;
  // AccumulateGrad has added it, or a fused op has added it to main_grad:
  // main_grad is the sum now.
  virtual void after_accumulate(int param, GradPart part) = 0;
  // The same for the step's last gradient, followed by finalize().
  virtual void after_last(int param, GradPart part) = 0;
  // The step adds no more gradients to this parameter, which has some.
  virtual void finalize(int param) = 0;
  // The same for a gradient that was written into main_grad by hand.
  virtual void finalize_by_hand(int param) = 0;
  // The same for a parameter without a gradient in this step.
  virtual void finalize_missing(int param) = 0;
  // The parameter's bucket is reduced: .grad becomes what an optimizer reads,
  // or none if no rank has used the parameter.
  virtual void give(int param, GradUse use) = 0;
  // The parameters have other memory now.
  virtual void follow_memory() = 0;
  // What the user did since the last note_untouched() or give(). Known only
  // with kMainGrad.
  virtual GradClearing clearing() const { return GradClearing::kNone; }
  // The present .grad is not a user's change.
  virtual void note_untouched() {}

 protected:
  explicit Handover(HandoverParts parts) : parts_(std::move(parts)) {}

  std::span<const Param> params() const { return parts_.progress.params(); }
  ParamMemory& memory() const { return parts_.memory; }
  // The parameter's .grad, by its place in params().
  torch::Tensor& grad_of(int param) const {
    return params()[static_cast<size_t>(param)].tensor.mutable_grad();
  }
  // Its part of flat memory.
  const torch::Tensor& main_grad_of(int param) const {
    return memory().main_grad(param);
  }
  // See HandoverParts.
  double mean_scale_of(int param) const { return parts_.mean_scale_of(param); }
  double mean_scale() const { return parts_.mean_scale(); }
  // How far the parameter is in this step.
  ParamStep& step_of(int param) const { return parts_.progress.of(param); }

 private:
  HandoverParts parts_;
};

// GradHandover::kParamDtype: .grad in the parameter's dtype, the mean applied.
std::unique_ptr<Handover> make_param_dtype_handover(HandoverParts parts);

// GradHandover::kMainGrad: .grad is main_grad, unscaled. If the optimizer's one
// scale is not that of the parameter's group, the gradient is multiplied with
// the rest of the factor before it is reduced.
std::unique_ptr<Handover> make_main_grad_handover(HandoverParts parts);

}  // namespace brigade
