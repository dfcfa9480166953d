#include <utility>

#include "brigade/data_parallel/handover.h"

namespace brigade {
namespace {

// Whether `grad` is `main_grad` rounded to its dtype, bit for bit, that is,
// nobody has changed it. Versions do not show that, since torch::nn::utils
// writes through data().
bool is_rounded_from(
    const torch::Tensor& grad,
    const torch::Tensor& main_grad) {
  // Compared as integers, in which a NaN equals itself.
  return torch::equal(
      grad.view(torch::kShort),
      main_grad.to(grad.scalar_type()).view(torch::kShort));
}

// The .grad of fp32 and fp64 parameters is an alias of main_grad, so that
// autograd adds micro-batches straight into it; that of 16-bit ones is a
// rounded copy.
//
// The mean's division costs no pass of its own if a step has one micro-batch:
// it happens as the gradient is copied, or in the conversion to 16 bits.
class ParamDtypeHandover : public Handover {
 public:
  explicit ParamDtypeHandover(HandoverParts parts)
      : Handover(std::move(parts)) {}

  bool keep_share(int param, int ranks) override {
    const torch::Tensor& grad = grad_of(param);
    if (!grad.defined())
      return false;
    // The factor by which the value in .grad is multiplied.
    const double share = 1 / (mean_scale_of(param) * ranks);
    const torch::Tensor& main_grad = main_grad_of(param);
    if (!is_copied(param)) {
      if (share != 1.0)
        grad.detach().mul_(share);
      return true;
    }
    const double given = step_of(param).given_scale;
    if (is_rounded_from(grad, main_grad * given))
      main_grad.mul_(given * share);
    else
      main_grad.copy_(grad).mul_(share);
    show(param);
    return true;
  }

  void before_accumulate(int param, GradPart part) override {
    torch::Tensor& grad = grad_of(param);
    ParamStep& step = step_of(param);
    step.has_users =
        part == GradPart::kFirst && step.shown.is_replaced_by(grad);
    if (step.has_users) {
      const torch::Tensor& main_grad = main_grad_of(param);
      if (!is_same_memory(grad, main_grad))
        main_grad.copy_(grad);
      grad = alias_of(main_grad);
    }
    if ((part == GradPart::kFurther || step.has_users) && !is_copied(param))
      return;  // AccumulateGrad adds to the alias
    if (part == GradPart::kFurther)
      adopt_changed_copy(param);
    // AccumulateGrad then keeps the incoming gradient itself.
    grad.reset();
  }

  void after_accumulate(int param, GradPart part) override {
    receive(param, part, 1.0);
    show(param);
  }

  void after_last(int param, GradPart part) override {
    receive(param, part, is_copied(param) ? 1.0 : mean_scale_of(param));
    grad_of(param).reset();
  }

  void finalize(int param) override {
    const torch::Tensor& grad = grad_of(param);
    const torch::Tensor& main_grad = main_grad_of(param);
    if (is_copied(param))
      adopt_changed_copy(param);
    else if (!grad.defined())
      main_grad.zero_();
    else if (!is_same_memory(grad, main_grad))
      main_grad.copy_(grad);
    finalize_by_hand(param);
  }

  void finalize_by_hand(int param) override {
    const double scale = is_copied(param) ? 1.0 : mean_scale_of(param);
    if (scale != 1.0)
      main_grad_of(param).mul_(scale);
    grad_of(param).reset();
  }

  void finalize_missing(int param) override {
    main_grad_of(param).zero_();
    grad_of(param).reset();
  }

  void give(int param, GradUse use) override {
    const double mean_scale = mean_scale_of(param);
    step_of(param).given_scale = mean_scale;
    torch::Tensor& grad = grad_of(param);
    const torch::Tensor& main_grad = main_grad_of(param);
    if (use == GradUse::kUnused) {
      grad.reset();
    } else if (is_copied(param)) {
      grad = torch::empty(
          main_grad.sizes(), main_grad.options().dtype(dtype_of(param)));
      at::mul_out(
          grad, main_grad, at::scalar_tensor(mean_scale, main_grad.options()));
    } else {
      grad = alias_of(main_grad);
    }
    if (grad.defined())
      step_of(param).shown.note(grad);
  }

  void follow_memory() override {}

 private:
  torch::ScalarType dtype_of(int param) const {
    return params()[static_cast<size_t>(param)].dtype;
  }
  bool is_copied(int param) const { return is_16_bit(dtype_of(param)); }

  // Not a view: zero_grad() detaches in place, which views refuse.
  static torch::Tensor alias_of(const torch::Tensor& main_grad) {
    return main_grad.variable_data();
  }

  // Sets main_grad to `scale` times the sum of the step, this gradient
  // included.
  void receive(int param, GradPart part, double scale) {
    const torch::Tensor& grad = grad_of(param);
    torch::Tensor main_grad = main_grad_of(param);
    const bool adds =
        (part == GradPart::kFurther || step_of(param).has_users) &&
        is_copied(param);
    if (!grad.defined()) {
      if (!adds)
        main_grad.zero_();
    } else if (adds) {
      main_grad.add_(grad);
    } else if (is_same_memory(grad, main_grad)) {
      if (scale != 1.0)
        main_grad.mul_(scale);
    } else if (scale == 1.0) {
      main_grad.copy_(grad);
    } else if (grad.scalar_type() != main_grad.scalar_type()) {
      main_grad.copy_(grad).mul_(scale);  // the product in main_grad's dtype
    } else {
      at::mul_out(main_grad, grad, at::scalar_tensor(scale, grad.options()));
    }
  }

  void show(int param) {
    const torch::Tensor& main_grad = main_grad_of(param);
    torch::Tensor& grad = grad_of(param);
    if (!is_copied(param)) {
      if (!grad.defined() || !is_same_memory(grad, main_grad))
        grad = alias_of(main_grad);
    } else {
      grad = main_grad.to(dtype_of(param));
    }
    step_of(param).shown.note(grad);
  }

  // If the user changed the copy, it replaces what has accumulated.
  void adopt_changed_copy(int param) {
    const torch::Tensor& grad = grad_of(param);
    const torch::Tensor& main_grad = main_grad_of(param);
    if (!grad.defined())
      main_grad.zero_();
    else if (!is_rounded_from(grad, main_grad))
      main_grad.copy_(grad);
  }
};

}  // namespace

std::unique_ptr<Handover> make_param_dtype_handover(HandoverParts parts) {
  return std::make_unique<ParamDtypeHandover>(std::move(parts));
}

}  // namespace brigade
