// What an optimizer keeps of each parameter of a sync, for the walks of its
// ParamSet.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// Makes the optimizer's states those of the sync's parameters, and returns the
// former ones (ParamSet::swap_states()). Both stay where they are when the
// memory's layout_version() changes. Collective with sharding. Throws
// UsageError if the optimizer steps other memory than the sync's, and (with
// sharding on every rank) if it steps some but not all elements of a parameter
// that a rank owns.
ParamSet::StatesByParam note_states(GradSync& sync, const Optimizer& optimizer);

// The same while it lives; afterwards parameters have their former states.
class NotedStates {
 public:
  NotedStates(GradSync& sync, const Optimizer& optimizer);
  // The present states of one of torch::optim's optimizers, of the parameters'
  // dtype and under libtorch's names ("exp_avg"); those of tensors that are not
  // the sync's are left out. Collective. Throws UsageError also for an
  // optimizer that fields_of() does not know.
  NotedStates(GradSync& sync, const torch::optim::Optimizer& optimizer);
  ~NotedStates();
  NotedStates(const NotedStates&) = delete;
  NotedStates& operator=(const NotedStates&) = delete;

  // How often each parameter has been stepped; -1: no optimizer steps it, or
  // torch's has not yet.
  const std::vector<int64_t>& steps() const { return steps_; }

 private:
  NotedStates(
      GradSync& sync,
      std::pair<ParamSet::StatesByParam, std::vector<int64_t>> found);

  GradSync& sync_;
  std::vector<int64_t> steps_;
  ParamSet::StatesByParam before_;
};

}  // namespace brigade
