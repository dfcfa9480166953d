// The flat memory of gradients, beside that of the weights that train: a planned
// bucket is a range of both, and of each bucket this rank owns a range, all of
// it without sharding. Norms, clipping and optimizers walk the owned ranges.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/optim/flat_memory.h"
#include "brigade/param/run_part.h"
#include "brigade/param/weight_memory.h"

namespace brigade {

class GradBuffer {
 public:
  // Zeroed, for the first `trained` parameters of `weights`.
  GradBuffer(const WeightMemory& weights, size_t trained, Sharding sharding);

  const std::vector<FlatSegment>& segments() const { return segments_; }
  // Shaped as the parameter.
  torch::Tensor& main_grad(int param) {
    return main_grads_[static_cast<size_t>(param)];
  }
  const torch::Tensor& main_grad(int param) const {
    return main_grads_[static_cast<size_t>(param)];
  }

  // The same gradients beside other weights' memory. Who holds views of the old
  // one learns it from flat_memory().
  void move_to(const WeightMemory& weights);
  // As WeightMemory::regroup().
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // What this rank owns of each parameter, which may be nothing; runs are the
  // owned ranges of segments.
  std::vector<RunPart> owned_parts() const;
  // A segment's owned range holds the sum over ranks. With sharding, what is
  // not owned is cleared; where gradients are divided the sum is added to the
  // shard.
  void take_reduced(size_t segment);

  // Changes whenever a main_grad was written by an ATen operation.
  int64_t flat_version() const;
  // Raised by each move.
  int64_t layout_version() const { return layout_version_; }
  Sharding sharding() const { return sharding_; }
  // What optimizers over this memory watch.
  const FlatMemoryPtr& flat_memory() const { return flat_memory_; }

 private:
  void lay_out(const WeightMemory& weights);

  Sharding sharding_;
  std::vector<FlatSegment> segments_;      // by bucket
  std::vector<torch::Tensor> flat_grads_;  // by dtype and unit
  std::vector<torch::Tensor> main_grads_;  // by parameter
  int64_t layout_version_ = 0;
  FlatMemoryPtr flat_memory_;
};

}  // namespace brigade
