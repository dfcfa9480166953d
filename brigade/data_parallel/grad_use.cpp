// GradSync between the hand-over of gradients and the optimizer: whether one has
// used them, and the leaves that torch::optim steps.
#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

namespace {

// Not as a view: zero_grad() detaches in place, which views refuse. With a
// version of its own: clearing it is not what step_owned() does, and without
// that the next backward is an error.
torch::Tensor as_leaf_gradient(const torch::Tensor& grad) {
  return grad.variable_data();
}

}  // namespace

std::optional<size_t> GradSync::segment_of(const torch::Tensor& owned) const {
  for (size_t s = 0; s < segments().size(); ++s) {
    if (segments()[s].owned_offset(owned))
      return s;
  }
  return std::nullopt;
}

torch::Tensor GradSync::main_grad_of(const torch::Tensor& owned) const {
  const auto index = segment_of(owned);
  if (!index)
    return {};
  const FlatSegment& segment = segments()[*index];
  return segment.owned_main_grad().narrow(
      0, *segment.owned_offset(owned), owned.numel());
}

torch::Tensor GradSync::owned_leaf(const torch::Tensor& owned) {
  if (leaves_layout_ != layout_version()) {
    owned_leaves_.clear();
    leaf_gradients_version_ = 0;
  }
  leaves_layout_ = layout_version();
  for (const torch::Tensor& leaf : owned_leaves_) {
    if (is_same_memory(leaf, owned) && leaf.numel() == owned.numel())
      return leaf;
  }
  const torch::Tensor leaf = owned.detach().requires_grad_();
  leaf.mutable_grad() = as_leaf_gradient(main_grad_of(leaf));
  set_owner(leaf, flat_memory());
  owned_leaves_.push_back(leaf);
  return leaf;
}

void GradSync::strand_leaves() const {
  for (const torch::Tensor& leaf : owned_leaves_)
    leaf.mutable_grad() = torch::empty({0}, leaf.options());
}

void GradSync::drop_cleared_leaves() {
  if (leaves_layout_ != layout_version())
    return;
  for (const torch::Tensor& leaf : owned_leaves_) {
    if (!leaf.grad().defined())
      main_grad_of(leaf).zero_();
  }
}

void GradSync::show_leaf_gradients() {
  if (leaves_layout_ != layout_version())
    return;
  for (const torch::Tensor& leaf : owned_leaves_) {
    if (!leaf.grad().defined())
      leaf.mutable_grad() = as_leaf_gradient(main_grad_of(leaf));
  }
  leaf_gradients_version_ = version_of_leaf_gradients();
}

int64_t GradSync::version_of_leaf_gradients() const {
  int64_t sum = 0;
  for (const torch::Tensor& leaf : owned_leaves_)
    sum += static_cast<int64_t>(leaf.grad()._version());
  return sum;
}

void GradSync::throw_if_leaves_changed() const {
  if (leaves_layout_ != layout_version())
    return;
  const bool are_all_there = std::all_of(
      owned_leaves_.begin(), owned_leaves_.end(), [](const auto& leaf) {
        return leaf.grad().defined();
      });
  const bool is_own_sum = options().sharding == Sharding::kOptimizer;
  if (are_all_there &&
      (!is_own_sum || version_of_leaf_gradients() == leaf_gradients_version_))
    return;
  throw ConfigError(fmt::format(
      "[data_parallel] an optimizer over owned_parameters() cleared or wrote "
      "its gradients between a step's backwards, which with sharding = {} "
      "does not drop what has accumulated so far: call reset() of "
      "DataParallel instead, or zero_grad() of the module",
      to_string(options().sharding)));
}

void GradSync::check_leaves_are_current() const {
  if (owned_leaves_.empty() || leaves_layout_ == layout_version())
    return;
  throw ConfigError(
      "[data_parallel] owned_parameters() were moved to other memory after "
      "this optimizer was made (BucketOrder::kObserved plans anew after the "
      "first step): make it anew, after the first backward at the earliest");
}

void GradSync::begin_use() {
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> weights;
  for (const Param& param : params())
    weights.push_back(param.tensor);
  if (options().handover == GradHandover::kMainGrad) {
    const bool is_scaled_later = grad_scale() != 1.0;
    for (const FlatSegment& segment : segments()) {
      weights.push_back(segment.owned_weight());
      if (is_scaled_later || segment.grad_shard.defined())
        gradients.push_back(segment.main_grad);
      if (is_scaled_later)
        gradients.push_back(segment.owned_main_grad());
    }
    show_leaf_gradients();
  }
  weights_version_ = version_of_weights();
  gradients_version_ = version_of_gradients();
  shown_version_ = version_of_shown();
  stepped_numel_ = 0;
  writes_.begin(gradients, weights);
}

void GradSync::check_are_reduced(const char* function) const {
  const bool is_own_sum = phase_ == Phase::kAccumulating &&
                          options().handover == GradHandover::kParamDtype;
  if (phase_ == Phase::kIdle || phase_ == Phase::kFinished || is_own_sum)
    return;
  throw_not_reduced(function + std::string("()"));
}

void GradSync::throw_not_reduced(const std::string& what) {
  throw ConfigError(fmt::format(
      "[data_parallel] {} before the step's gradients are reduced: call it "
      "after the last backward() outside no_sync(), and with "
      "FinishMode::kExplicit after finish()",
      what));
}

void GradSync::note_use() {
  writes_.note_step();
  gradients_version_ = -1;
  stepped_numel_ = owned_numel();
}

bool GradSync::were_used() const {
  return writes_.has_seen_weights() ||
         version_of_weights() != weights_version_ || memory_->are_replaced();
}

bool GradSync::were_touched() const {
  return were_used() || version_of_shown() != shown_version_;
}

bool GradSync::end_use() const {
  throw_if_stepped_elsewhere();
  // A rank that owns nothing that was stepped has nothing to clear.
  if (stepped_numel_ > 0 || writes_.seen() == WriteWatch::Seen::kWeights)
    throw_if_kept();
  return options().handover == GradHandover::kMainGrad &&
         stepped_numel_ < owned_numel();
}

int64_t GradSync::owned_numel() const {
  int64_t sum = 0;
  for (const FlatSegment& segment : segments())
    sum += segment.owned.numel;
  return sum;
}

int64_t GradSync::version_of_weights() const {
  if (options().handover != GradHandover::kMainGrad)
    return 0;
  int64_t sum = 0;
  for (const FlatSegment& segment : segments())
    sum += static_cast<int64_t>(segment.owned_weight()._version());
  return sum;
}

int64_t GradSync::version_of_gradients() const {
  int64_t sum = 0;
  for (const FlatSegment& segment : segments())
    sum += static_cast<int64_t>(segment.owned_main_grad()._version());
  return sum;
}

int64_t GradSync::version_of_shown() const {
  int64_t sum = 0;
  for (const Param& param : params()) {
    const torch::Tensor& grad = param.tensor.grad();
    if (grad.defined())
      sum += 1 + static_cast<int64_t>(grad._version());
  }
  return sum;
}

// Divided gradients are in shards, which zero_grad() does not reach.
bool GradSync::are_uncleared() const {
  return options().handover == GradHandover::kMainGrad &&
         version_of_gradients() == gradients_version_ &&
         (divides_gradients(options().sharding) ||
          params().front().tensor.grad().defined());
}

void GradSync::throw_if_stepped_elsewhere() const {
  const bool is_grad_read =  // .grad() is what such an optimizer takes it for
      options().handover == GradHandover::kParamDtype ||
      (options().sharding == Sharding::kNone &&
       options().reduction == Reduction::kSum);
  if (is_grad_read || writes_.seen() == WriteWatch::Seen::kStep)
    return;
  throw ConfigError(fmt::format(
      "[data_parallel] weights were written between the step's last backward() "
      "and this one by something that does not know where gradients are: with "
      "handover = kMainGrad and sharding = {}, .grad() is a sum over ranks "
      "that is still to be scaled, and with sharding a part of one. Give the "
      "optimizer owned_parameters() and step the weights by "
      "DataParallel::step(), or use make_adamw(). To write them otherwise, "
      "call reset() of DataParallel first",
      to_string(options().sharding)));
}

void GradSync::throw_if_kept() const {
  if (!are_uncleared())
    return;
  throw ConfigError(
      "[data_parallel] an optimizer used the gradients and did not clear them, "
      "so that this backward() would add to the last step's: call "
      "AdamW::step() with AfterRead::kZero, step torch::optim over "
      "owned_parameters() by DataParallel::step(optimizer), or clear them with "
      "zero_main_grads()");
}

void GradSync::check_before_step() {
  if (phase_ == Phase::kAccumulating &&
      options().handover == GradHandover::kMainGrad)
    throw_not_reduced("an optimizer's step");
  // An optimizer steps what torch::load() has brought since backward.
  if (options().sharding != Sharding::kParameters)
    memory_->take_back();
  const bool is_watched =
      options().handover == GradHandover::kMainGrad && writes_.is_watching();
  bool is_changed = writes_.seen() == WriteWatch::Seen::kGradients;
  std::string name = "a parameter";
  for (int i = 0; is_watched && i < static_cast<int>(params().size()); ++i) {
    const Param& param = params()[static_cast<size_t>(i)];
    const torch::Tensor& grad = param.tensor.grad();
    if (grad.defined() && is_same_memory(grad, main_grad(i)))
      continue;
    is_changed = true;
    name = "'" + param.name + "'";
    break;
  }
  if (is_watched && is_changed) {
    throw ConfigError(fmt::format(
        "[data_parallel] .grad() of {} was changed between the step's last "
        "backward() and the optimizer, which with handover = kMainGrad and "
        "sharding = {} does not do what it does in PyTorch: the gradients are "
        "sums over ranks, and with sharding parts of them, that are scaled in "
        "the step. Call clip_grad_norm() or clip_grad_value() of DataParallel, "
        "or give the optimizer's step another grad_scale",
        name,
        to_string(options().sharding)));
  }
  writes_.note_step();
}

}  // namespace brigade
