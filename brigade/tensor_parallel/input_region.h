// The start of one or several column-parallel products on one input: a
// copy_region or gather_tokens whose backward collective can start before the
// region's own turn comes.
//
//   InputRegion region(parallel);
//   y = f(region.enter(x));
//   backward of f:          region.start(input_grad), the weight's gradient
//   backward of the region: waits for what start() launched
//
// A value: f's backward keeps a copy. One enter() a region. All calls come from
// the threads that run forward and backward.
#pragma once

#include <memory>

#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

class InputRegion {
 public:
  explicit InputRegion(TensorParallel parallel);

  // kReplicated: x itself; kSharded: [N/R, ..] to [N, ..].
  torch::Tensor enter(const torch::Tensor& x) const;

  // Launches the reduction of enter()'s gradient. input_grad is contiguous, the
  // only gradient of enter()'s result, and what f's backward returns for it; in
  // kReplicated it is reduced in place, so nobody may touch it in between.
  // Without start() the region's backward launches and waits.
  void start(const torch::Tensor& input_grad) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace brigade
