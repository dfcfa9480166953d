// What an optimizer keeps of each parameter of a sync, whatever of it this rank
// has. Where sync.layout_version() changes it still finds the states of the
// optimizer that it was made with (of()), which lie where they did.
#pragma once

#include <optional>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/owned_runs.h"
#include "brigade/optim/optimizer.h"
#include "brigade/param/state.h"

namespace brigade {

class ParamStates {
 public:
  // Both outlive it. Collective with sharding. Throws ConfigError where the
  // optimizer steps other memory than the sync's.
  ParamStates(const GradSync& sync, const Optimizer& optimizer);

  // Without sharding: views, shaped as the parameter; empty where it is not
  // stepped.
  std::vector<State> of(int param) const;
  // The same of all parameters of a segment, in the order of its slots. With
  // sharding they are gathered, collectively.
  std::vector<std::vector<State>> gather(const FlatSegment& segment) const;

  // As of(), of zeros: for keep().
  std::vector<State> zeros(int param) const;
  // This rank's part of whole states becomes the optimizer's.
  void keep(int param, const std::vector<State>& whole) const;

 private:
  std::vector<StateSpec> specs(int param) const;
  // This rank's part of the k-th state; flat.
  State owned(const RunPart& place, size_t k) const;

  const GradSync& sync_;
  const Optimizer& optimizer_;
  std::vector<std::optional<RunPart>> places_;  // by parameter, in groups
  // The same, of whichever rank steps it; unset: none does.
  std::vector<std::optional<StepUnit>> unit_of_;
};

}  // namespace brigade
