// A tiny model trained in every layout that the ranks of a run allow, against
// one rank with ATen's kernels: what `brigade doctor` trusts a machine by.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/comm/store.h"
#include "brigade/launch/environment.h"
#include "brigade/topology/parallel_dims.h"

namespace brigade {

struct LayoutDifference {
  std::string layout;  // "dp2 tp2", "dp4 zero1"
  // Largest over the steps, relative to one rank's value.
  double loss = 0;
  double grad_norm = 0;
  std::string failure;  // what it ended with; "": nothing

  // float32: sums of another order, and nothing else.
  static constexpr double kTolerance = 2e-5;
  bool is_good() const {
    return failure.empty() && loss <= kTolerance && grad_norm <= kTolerance;
  }
};

// Every product of axis sizes that is `ranks` and that the tiny model can be
// cut by, one axis before two, two before three.
std::vector<ParallelDims> layouts_of(int ranks);

// Writes what the check trains on into `folder`.
void write_layout_check_data(const std::filesystem::path& folder);

// Collective over the run's ranks, whose rendezvous is `store` (null for one
// rank): each layout over that backend, on its device, against one rank on the
// CPU. `folder` holds what write_layout_check_data() wrote. `on_result` is
// called with each layout's result as it comes, on every rank. A CommError ends
// the check: the ranks cannot connect again.
void check_layouts(
    const LaunchEnvironment& environment,
    const StorePtr& store,
    const std::filesystem::path& folder,
    const std::function<void(const LayoutDifference&)>& on_result,
    Backend over = Backend::kGloo);

}  // namespace brigade
