// This rank's part of the flat weights (GradHandover::kMainGrad), cut into the
// flat tensors that optimizers step.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/param/run_part.h"

namespace brigade {

// A range of the owned part of one bucket: neighbours that are stepped alike.
struct OwnedRun {
  size_t segment = 0;  // of GradSync::segments()
  int64_t offset = 0;  // in the segment's owned range
  int64_t numel = 0;
  int group = 0;

  torch::Tensor weight(const GradSync& sync) const;     // [numel]
  torch::Tensor main_grad(const GradSync& sync) const;  // [numel]
  // "bucket 3", or of a part of one "bucket 3 [0:128]".
  std::string name(const GradSync& sync) const;
};

// The owned ranges of all segments, in order, cut where the group of a
// parameter changes. group_of: by parameter of `sync`. Padding belongs to the
// run before it; a range of padding alone to group 0.
std::vector<OwnedRun> cut_owned(
    const GradSync& sync,
    const std::vector<int>& group_of);

// Where a tensor lies that is the weight() of a run; std::nullopt: elsewhere.
std::optional<OwnedRun> find_owned(
    const GradSync& sync,
    const torch::Tensor& weight);

// Each parameter of which a run has elements.
// In the order of memory.
std::vector<RunPart> parts_of(const GradSync& sync, const OwnedRun& run);
// The same of a tensor that an optimizer of torch::optim steps: a parameter, or
// the weight() of a run. Empty: it is padding; std::nullopt: it is elsewhere.
std::optional<std::vector<RunPart>> parts_of(
    const GradSync& sync,
    const torch::Tensor& stepped);

}  // namespace brigade
