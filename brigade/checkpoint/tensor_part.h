// One rank's part of a tensor (State::slice), on its way into or out of a
// checkpoint.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/param/state.h"

namespace brigade {

// Without padding; a view.
torch::Tensor without_padding(const State& part, const torch::Tensor& tensor);
// Those of blocks that are not padding alone.
torch::Tensor stored_scales(const State& part);

// Copies of parts in the host's memory, which is kept from one call to the
// next, so that only the first call has new pages to touch. It is page-locked
// for what comes from a GPU.
class PartSnapshot {
 public:
  // The same parts over copies of their tensors, there when the call returns,
  // which the next call overwrites. Padding is left out.
  std::vector<State> copy(const std::vector<State>& parts);

 private:
  torch::Tensor copy_tensor(const torch::Tensor& source);

  std::vector<torch::Tensor> memory_;
  size_t next_ = 0;
};

}  // namespace brigade
