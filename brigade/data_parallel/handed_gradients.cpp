#include "brigade/data_parallel/handed_gradients.h"

#include <fmt/format.h>

#include <string>

#include "brigade/base/error.h"

namespace brigade {

void HandedGradients::begin(double grad_scale) {
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> weights;
  for (const Param& param : progress_->params())
    weights.push_back(param.tensor);
  if (are_main_grads()) {
    const bool is_scaled_later = grad_scale != 1.0;
    for (const FlatSegment& segment : memory_->segments()) {
      weights.push_back(segment.owned_weight());
      if (is_scaled_later || segment.grad_shard.defined())
        gradients.push_back(segment.main_grad);
      if (is_scaled_later)
        gradients.push_back(segment.owned_main_grad());
    }
  }
  weights_version_ = version_of_weights();
  gradients_version_ = version_of_gradients();
  shown_version_ = version_of_shown();
  stepped_numel_ = 0;
  writes_.begin(gradients, weights, [this] { note_used(); });
}

void HandedGradients::note_used() {
  if (are_main_grads())
    return;  // ParamStep::shown is only read with kParamDtype
  for (size_t i = 0; i < progress_->params().size(); ++i) {
    const torch::Tensor& grad = progress_->params()[i].tensor.grad();
    if (grad.defined())
      progress_->of(static_cast<int>(i)).shown.note(grad);
  }
}

void HandedGradients::note_all_stepped() {
  writes_.note_step();
  gradients_version_ = -1;
  stepped_numel_ = owned_numel();
}

bool HandedGradients::were_used() const {
  return writes_.has_seen_weights() ||
         version_of_weights() != weights_version_ || memory_->are_replaced();
}

bool HandedGradients::were_touched() const {
  return gradients_version_ >= 0 &&
         (were_used() || version_of_shown() != shown_version_);
}

bool HandedGradients::end_use() const {
  throw_if_stepped_elsewhere();
  // A rank that owns nothing that was stepped has nothing to clear.
  if (stepped_numel_ > 0 || writes_.seen() == WriteObserver::Seen::kWeights)
    throw_if_kept();
  return are_main_grads() && stepped_numel_ < owned_numel();
}

int64_t HandedGradients::owned_numel() const {
  int64_t sum = 0;
  for (const FlatSegment& segment : memory_->segments())
    sum += segment.owned.numel;
  return sum;
}

int64_t HandedGradients::version_of_weights() const {
  if (!are_main_grads())
    return 0;
  int64_t sum = 0;
  for (const FlatSegment& segment : memory_->segments())
    sum += static_cast<int64_t>(segment.owned_weight()._version());
  return sum;
}

int64_t HandedGradients::version_of_gradients() const {
  int64_t sum = 0;
  for (const FlatSegment& segment : memory_->segments())
    sum += static_cast<int64_t>(segment.owned_main_grad()._version());
  return sum;
}

int64_t HandedGradients::version_of_shown() const {
  int64_t sum = 0;
  for (const Param& param : progress_->params()) {
    const torch::Tensor& grad = param.tensor.grad();
    if (grad.defined())
      sum += 1 + static_cast<int64_t>(grad._version());
  }
  return sum;
}

// Divided gradients are in shards, which zero_grad() does not clear.
bool HandedGradients::are_uncleared() const {
  return are_main_grads() && version_of_gradients() == gradients_version_ &&
         (divides_gradients(options_->sharding) ||
          progress_->params().front().tensor.grad().defined());
}

void HandedGradients::throw_if_stepped_elsewhere() const {
  const bool is_grad_read =  // .grad() is what such an optimizer takes it for
      !are_main_grads() || (options_->sharding == Sharding::kNone &&
                            options_->reduction == Reduction::kSum);
  if (is_grad_read || writes_.seen() == WriteObserver::Seen::kStep)
    return;
  throw UsageError(fmt::format(
      "[data_parallel] weights were written between the step's last backward() "
      "and this one by something that does not know where gradients are: with "
      "handover = kMainGrad and sharding = {}, .grad() is a sum over ranks "
      "that is still to be scaled, and with sharding a part of one. Give the "
      "optimizer owned_parameters() and step the weights by "
      "DataParallel::step(), or use make_adamw(). To write them otherwise, "
      "call reset() of DataParallel first",
      to_string(options_->sharding)));
}

void HandedGradients::throw_if_kept() const {
  if (!are_uncleared())
    return;
  throw UsageError(
      "[data_parallel] an optimizer used the gradients and did not clear them, "
      "so that this backward() would add to the last step's: call "
      "AdamW::step() with AfterRead::kZero, step torch::optim over "
      "owned_parameters() by DataParallel::step(optimizer), or clear them with "
      "zero_main_grads()");
}

void HandedGradients::begin_optimizer_step() {
  const bool is_observed = are_main_grads() && writes_.is_observing();
  bool is_changed = writes_.seen() == WriteObserver::Seen::kGradients;
  std::string name = "a parameter";
  for (int i = 0;
       is_observed && i < static_cast<int>(progress_->params().size());
       ++i) {
    const Param& param = progress_->params()[static_cast<size_t>(i)];
    const torch::Tensor& grad = param.tensor.grad();
    if (grad.defined() && is_same_memory(grad, memory_->main_grad(i)))
      continue;
    is_changed = true;
    name = "'" + param.name + "'";
    break;
  }
  if (is_observed && is_changed) {
    throw UsageError(fmt::format(
        "[data_parallel] .grad() of {} was changed between the step's last "
        "backward() and the optimizer, which with handover = kMainGrad and "
        "sharding = {} does not do what it does in PyTorch: the gradients are "
        "sums over ranks, and with sharding parts of them, that are scaled in "
        "the step. Call clip_grad_norm() or clip_grad_value() of DataParallel, "
        "or give the optimizer's step another grad_scale",
        name,
        to_string(options_->sharding)));
  }
  writes_.note_step();
}

}  // namespace brigade
