// What an optimizer keeps of each parameter of a sync, whatever of it this rank
// has. Where sync.layout_version() changes it still finds the states of the
// optimizer that it was made with (of()), which lie where they did.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"
#include "brigade/param/state.h"

namespace brigade {

class ParamStates {
 public:
  // Both outlive it. Collective with sharding. Throws ConfigError where the
  // optimizer steps other memory than the sync's.
  ParamStates(const GradSync& sync, const Optimizer& optimizer);
  // What one of torch::optim keeps now, of the same dtype as its parameters,
  // under libtorch's names ("exp_avg"); of tensors that are not the sync's
  // nothing. Collective. Throws ConfigError for another one than fields_of()
  // knows.
  ParamStates(const GradSync& sync, const torch::optim::Optimizer& optimizer);

  // Without sharding: views, shaped as the parameter; empty where it is not
  // stepped.
  std::vector<State> of(int param) const;
  // The same of all parameters of a segment, in the order of its slots. With
  // sharding they are gathered, collectively.
  std::vector<std::vector<State>> gather(const FlatSegment& segment) const;

  // How often it was stepped when this was made; -1: nobody steps it, or torch's
  // optimizer never has.
  int64_t steps(int param) const { return steps_[static_cast<size_t>(param)]; }

  // As of(), of zeros: for keep().
  std::vector<State> zeros(int param) const;
  // This rank's part of whole states becomes the optimizer's.
  void keep(int param, const std::vector<State>& whole) const;

 private:
  explicit ParamStates(const GradSync& sync);
  // What is kept of these elements of parameters on this rank.
  void add(const std::vector<RunPart>& parts, std::vector<State> states);
  const std::vector<StateSpec>& specs(int param) const {
    return specs_[static_cast<size_t>(param)];
  }
  State zero(const StateSpec& spec, const torch::Tensor& weight) const;
  // This rank's part of the k-th state; flat.
  State owned(const RunPart& place, size_t k) const;

  const GradSync& sync_;
  bool is_torch_ = false;
  std::vector<std::vector<State>> states_;      // by run, flat
  std::vector<std::optional<RunPart>> places_;  // by parameter, in runs
  // The same, of whichever rank steps it.
  std::vector<std::vector<StateSpec>> specs_;
  std::vector<int64_t> steps_;
};

}  // namespace brigade
