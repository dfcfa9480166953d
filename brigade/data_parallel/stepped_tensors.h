// The tensors that an optimizer of torch::optim steps, and what it keeps of each: the parts
// from which optimizer_state.h makes the state of whole parameters.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/owned_runs.h"

namespace brigade {

struct SteppedTensor {
  // Which elements of which parameters it has.
  std::vector<RunPart> parts;
  std::optional<size_t> segment;  // unset: a parameter itself
  int64_t offset = 0;             // in the segment's owned range
  bool has_state = false;
  int64_t step = 0;
  std::map<std::string, torch::Tensor> fields;  // by libtorch's names
};

// Where `tensor` has elements of parameters; without parts: nowhere, or in
// padding.
SteppedTensor find_stepped(const GradSync& sync, const torch::Tensor& tensor);

// Those of which the optimizer keeps something. Throws ConfigError for one that
// is neither a parameter of `sync` nor in its memory.
std::vector<SteppedTensor> stepped_by(
    const GradSync& sync,
    const torch::optim::Optimizer& optimizer);

}  // namespace brigade
