// The optimizer's states of each parameter of a sync, whatever part of them
// this rank holds. After sync.layout_version() has changed, of() still finds
// the states of the optimizer that it was made with, which lie where they did.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"
#include "brigade/param/state.h"

namespace brigade {

class ParamStates {
 public:
  // Both outlive it. Collective with sharding. Throws UsageError if the
  // optimizer steps other memory than the sync's.
  ParamStates(const GradSync& sync, const Optimizer& optimizer);
  // The present states of one of torch::optim's optimizers, of the parameters'
  // dtype and under libtorch's names ("exp_avg"); those of tensors that are not
  // the sync's are left out. Collective. Throws UsageError for an optimizer
  // that fields_of() does not know.
  ParamStates(const GradSync& sync, const torch::optim::Optimizer& optimizer);

  // Views of the states, shaped as the parameter; empty if it is not stepped.
  // Precondition: no sharding.
  std::vector<State> of(int param) const;
  // The same for all parameters of a segment, in the order of its slots. With
  // sharding they are gathered, collectively.
  std::vector<std::vector<State>> gather(const FlatSegment& segment) const;

  // How often the parameter had been stepped when this was made; -1 if no
  // optimizer steps it, or torch's has not yet.
  int64_t steps(int param) const { return kept_of(param).steps; }

  // As of(), but zeros: to be filled in for keep().
  std::vector<State> zeros(int param) const;
  // This rank's part of whole states becomes the optimizer's.
  void keep(int param, const std::vector<State>& whole) const;

 private:
  explicit ParamStates(const GradSync& sync);
  // Adds the states of these elements of parameters on this rank.
  void add(const std::vector<RunPart>& parts, const std::vector<State>& states);
  // The states of a parameter, whichever rank steps it, and this rank's part of
  // them: flat, of its elements from `begin` on.
  struct Kept {
    std::vector<StateSpec> specs;
    int64_t steps = -1;
    int64_t begin = 0;
    std::vector<State> mine;  // empty: none
  };
  const Kept& kept_of(int param) const {
    return kept_[static_cast<size_t>(param)];
  }
  State zero(const StateSpec& spec, const torch::Tensor& weight) const;

  const GradSync& sync_;
  bool is_torch_ = false;
  std::vector<Kept> kept_;  // by parameter
};

}  // namespace brigade
