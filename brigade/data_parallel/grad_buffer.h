// The flat memory of gradients, and where the optimizer steps over it also of
// weights: a planned bucket is a range of it, and of each bucket this rank owns
// a range, all of it without sharding. Norms, clipping, optimizers and
// checkpoints walk the owned ranges.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/data_parallel/sharding.h"
#include "brigade/data_parallel/wrapped_params.h"
#include "brigade/optim/flat_memory.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// One bucket's range of the flat memory.
struct GradSegment {
  torch::Tensor main_grad;  // [numel], padding is zero
  // [numel], only where the memory holds weights; of Sharding::kParameters
  // without memory most of the time.
  torch::Tensor weight;
  std::vector<BucketSlot> slots;
  OwnedRange owned;
  // [owned.numel]: only where gradients are divided (divides_gradients()) and
  // main_grad holds them until they are reduced: their sum over ranks and
  // micro-batches.
  torch::Tensor shard;
  // [owned.numel]: Sharding::kParameters only: the owned weights.
  torch::Tensor weight_shard;
  int unit = 0;      // see NamedParam
  ParamGroup group;  // of its parameters: they are reduced and gathered over it

  // [owned.numel]: what an optimizer reads.
  torch::Tensor owned_main_grad() const;
  torch::Tensor owned_weight() const;  // [owned.numel]
};

// The dtype of a parameter's main_grad: float32 for 16 bits, else its own.
torch::ScalarType main_grad_dtype(torch::ScalarType param);
// Whether its gradients accumulate in float32 instead.
bool is_16_bit(torch::ScalarType dtype);

// Whether two tensors begin at the same element of the same storage.
bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b);

// What planning knows of the parameters.
std::vector<BucketParam> bucket_params_of(
    const std::vector<NamedParam>& params);

// What this rank owns of one parameter: [begin, begin + numel) of its elements,
// at `offset` of the owned range of `segment`. numel 0: nothing.
struct OwnedPart {
  size_t segment = 0;
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t offset = 0;
};

class GradBuffer {
 public:
  // Zeroed, and with kMove also holding the parameters' values, into which the
  // parameters then are views. All buckets of one dtype (with kParameters of
  // one dtype and unit) lie side by side in one piece of memory: linear() makes
  // one product of neighbours. With kParameters the weights are released then.
  GradBuffer(
      const BucketPlan& plan,
      const std::vector<NamedParam>& params,
      FlatWeights weights,
      Sharding sharding = Sharding::kNone);

  const std::vector<GradSegment>& segments() const { return segments_; }
  // Shaped as the parameter.
  torch::Tensor& main_grad(int param) {
    return main_grads_[static_cast<size_t>(param)];
  }
  const torch::Tensor& main_grad(int param) const {
    return main_grads_[static_cast<size_t>(param)];
  }

  // The same contents under another plan: gradients, and with kMove weights.
  // Who holds views of the old memory learns it from flat_memory().
  void move_to(const BucketPlan& plan);
  // Without sharding: what was reduced over `from` is reduced over `to`.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // Of each parameter, in the order given.
  std::vector<OwnedPart> owned_parts() const;
  // A segment's owned range holds the sum over ranks. With sharding, what is
  // not owned is cleared; where gradients are divided the sum is added to the
  // shard.
  void take_reduced(size_t segment);
  // With kMove: takes the values of parameters that were given other memory, as
  // torch::load() does, and makes them views again. Raises
  // FlatMemory::weights_version when there were any. Throws ConfigError naming
  // one of those with Sharding::kParameters: see FullWeights.
  void take_back_weights();

  // Changes whenever a main_grad was written by an ATen operation.
  int64_t flat_version() const;
  // Changes whenever an optimizer has written flat weights.
  int64_t weights_version() const;
  // Raised by each move.
  int64_t layout_version() const { return layout_version_; }
  Sharding sharding() const { return sharding_; }
  // What optimizers over this memory watch.
  const FlatMemoryPtr& flat_memory() const { return flat_memory_; }

 private:
  void lay_out(const BucketPlan& plan);

  std::vector<NamedParam> params_;
  FlatWeights weights_;
  Sharding sharding_;
  std::vector<GradSegment> segments_;         // by bucket
  std::vector<torch::Tensor> flat_grads_;     // by dtype
  std::vector<torch::Tensor> flat_weights_;   // by dtype, kMove only
  std::vector<torch::Tensor> main_grads_;     // by parameter
  std::vector<torch::Tensor> param_weights_;  // by parameter, kMove only
  int64_t layout_version_ = 0;
  FlatMemoryPtr flat_memory_;
};

}  // namespace brigade
