// The leaves that torch::optim steps: views of the weights that this rank owns,
// whose .grad() is their main_grad. There are none until owned_parameters()
// asks for them.
//
// Used by one thread at a time: the trainer's, or backward's if a step begins,
// goes on or ends in it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "brigade/param/param_memory.h"

namespace brigade {

class OwnedLeaves {
 public:
  // `memory` holds the weights (FlatWeights::kMove) and outlives this object.
  explicit OwnedLeaves(const ParamMemory& memory) : memory_(&memory) {}
  // An optimizer that steps them afterwards fails: they are no longer a
  // module's weights, and libtorch refuses gradients without elements.
  ~OwnedLeaves();
  OwnedLeaves(const OwnedLeaves&) = delete;
  OwnedLeaves& operator=(const OwnedLeaves&) = delete;

  // The leaf of a view of owned weights: the same tensor for the same range
  // until the layout changes.
  torch::Tensor leaf_of(const torch::Tensor& owned);
  // Drops the gradients of leaves that an optimizer has cleared to none.
  void drop_cleared();
  // Called when a step begins or its gradients are handed over: leaves that
  // were cleared to none have gradients again.
  void show_gradients();
  // Throws UsageError if an optimizer has cleared gradients to none since
  // show_gradients() or, with Sharding::kOptimizer, written them. Before the
  // step's end that does not drop what has accumulated: an undefined .grad() is
  // not read, and with Sharding::kOptimizer the gradients are only a part of
  // this rank's own sum.
  void throw_if_changed() const {
    if (!leaves_.empty())
      throw_if_any_changed();
  }
  // Throws UsageError if flat memory has moved since the last call of
  // leaf_of(): an optimizer over those leaves would step memory that nobody
  // reads.
  void throw_if_moved() const;

 private:
  bool have_moved() const { return layout_ != memory_->layout_version(); }
  void throw_if_any_changed() const;
  // Precondition: all have gradients.
  int64_t version_of_gradients() const;

  const ParamMemory* memory_;
  std::vector<torch::Tensor> leaves_;
  int64_t layout_ = 0;             // of leaves_
  int64_t gradients_version_ = 0;  // when they were shown
};

}  // namespace brigade
