#include "brigade/data_parallel/owned_leaves.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/data_parallel/grad_hooks.h"

namespace brigade {
namespace {

// Not a view: zero_grad() detaches in place, which views refuse. It has a
// version of its own: clearing it does not count as step_owned(), without which
// the next backward is an error.
torch::Tensor as_leaf_gradient(const torch::Tensor& grad) {
  return grad.variable_data();
}

}  // namespace

OwnedLeaves::~OwnedLeaves() {
  for (const torch::Tensor& leaf : leaves_)
    leaf.mutable_grad() = torch::empty({0}, leaf.options());
}

torch::Tensor OwnedLeaves::leaf_of(const torch::Tensor& owned) {
  if (have_moved()) {
    leaves_.clear();
    gradients_version_ = 0;
  }
  layout_ = memory_->layout_version();
  for (const torch::Tensor& leaf : leaves_) {
    if (is_same_memory(leaf, owned) && leaf.numel() == owned.numel())
      return leaf;
  }
  const torch::Tensor leaf = owned.detach().requires_grad_();
  leaf.mutable_grad() = as_leaf_gradient(memory_->main_grad_of(leaf));
  set_owner(leaf, memory_->flat_memory());
  leaves_.push_back(leaf);
  return leaf;
}

void OwnedLeaves::drop_cleared() {
  if (have_moved())
    return;
  for (const torch::Tensor& leaf : leaves_) {
    if (!leaf.grad().defined())
      memory_->main_grad_of(leaf).zero_();
  }
}

void OwnedLeaves::show_gradients() {
  if (have_moved())
    return;
  for (const torch::Tensor& leaf : leaves_) {
    if (!leaf.grad().defined())
      leaf.mutable_grad() = as_leaf_gradient(memory_->main_grad_of(leaf));
  }
  gradients_version_ = version_of_gradients();
}

int64_t OwnedLeaves::version_of_gradients() const {
  int64_t sum = 0;
  for (const torch::Tensor& leaf : leaves_)
    sum += static_cast<int64_t>(leaf.grad()._version());
  return sum;
}

void OwnedLeaves::throw_if_any_changed() const {
  if (have_moved())
    return;
  const bool are_all_there =
      std::all_of(leaves_.begin(), leaves_.end(), [](const auto& leaf) {
        return leaf.grad().defined();
      });
  const bool is_own_sum = memory_->sharding() == Sharding::kOptimizer;
  if (are_all_there &&
      (!is_own_sum || version_of_gradients() == gradients_version_))
    return;
  throw UsageError(fmt::format(
      "[data_parallel] an optimizer over owned_parameters() cleared or wrote "
      "its gradients between a step's backwards, which with sharding = {} "
      "does not drop what has accumulated so far: call reset() of "
      "DataParallel instead, or zero_grad() of the module",
      to_string(memory_->sharding())));
}

void OwnedLeaves::throw_if_moved() const {
  if (leaves_.empty() || !have_moved())
    return;
  throw UsageError(
      "[data_parallel] owned_parameters() were moved to other memory after "
      "this optimizer was made (BucketOrder::kObserved plans again after "
      "the first step): make it again, after the first backward at the "
      "earliest");
}

}  // namespace brigade
