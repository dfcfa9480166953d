// The flat memory of a model part's parameters: weights, and beside those that
// train their gradients. A planned bucket is a range of both, in which the
// parameters are views, and of each bucket this rank owns a range, all of it
// without sharding: norms, clipping and optimizers walk the owned ranges. With
// Sharding::kParameters each rank keeps the weights that it owns, and the rest
// comes and goes (ShardedWeights).
//
// Changed between backwards by the trainer's thread; ShardedWeights reads its
// segments in forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "brigade/base/flat_range.h"
#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"
#include "brigade/param/sharding.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// Where weights are kept.
enum class FlatWeights {
  kLeaveAlone,  // weights stay where their module has them
  kMove,        // into the flat memory
};

// One bucket's range of the flat memory: weights, and their gradients.
struct FlatSegment {
  // [numel], only where the memory holds weights; of Sharding::kParameters
  // without memory most of the time.
  torch::Tensor weight;
  std::vector<RunPart> slots;
  FlatRange owned;
  // [owned.numel]: Sharding::kParameters only: the owned weights.
  torch::Tensor weight_shard;
  int unit = 0;      // see Param
  ParamGroup group;  // of its parameters: they are reduced and gathered over it
  // [numel], of those that train; padding is zero.
  torch::Tensor main_grad;
  // [owned.numel]: only where gradients are divided (divides_gradients()) and
  // main_grad holds them until they are reduced: their sum over ranks and
  // micro-batches.
  torch::Tensor grad_shard;

  // [owned.numel]: what an optimizer steps and reads.
  torch::Tensor owned_weight() const;
  torch::Tensor owned_main_grad() const;
  // Where in owned_weight() a view of it begins; std::nullopt: it is no view of
  // it.
  std::optional<int64_t> owned_offset(const torch::Tensor& view) const;
};

// Whether two tensors begin at the same element of the same storage.
bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b);

// The dtype of a parameter's main_grad: float32 for 16 bits, else its own.
torch::ScalarType main_grad_dtype(torch::ScalarType param);
// Whether its gradients accumulate in float32 instead.
bool is_16_bit(torch::ScalarType dtype);

// What planning knows of the parameters.
std::vector<BucketParam> bucket_params_of(std::span<const Param> params);

// `plan` for the first of `params`, those that it plans, and further buckets
// behind it for the rest, which are frozen.
BucketPlan with_frozen(
    BucketPlan plan,
    std::span<const Param> params,
    const BucketPlanOptions& options);

// What an optimizer over flat memory must know of its owner's changes.
struct FlatMemory {
  // False once the owner has moved to other memory: nothing else reads or
  // writes views of this one.
  bool is_current = true;
  // Raised when weights were replaced from outside (broadcast after a join):
  // masters must be made anew.
  int64_t weights_version = 0;
  // Called before a step reads gradients, where there is one; throws what keeps
  // it from being right.
  std::function<void()> before_step = {};
  // Called when so many elements were stepped, where there is one.
  std::function<void(int64_t numel)> after_step = {};
};
// Shared by the memory's owner and its optimizers.
using FlatMemoryPtr = std::shared_ptr<FlatMemory>;

class ParamMemory {
 public:
  // `plan` of `params`, which outlive this object and of which those that train
  // come first; each learns its place (Param::main_grad). With kMove holds
  // their values and makes them views of it. All buckets of one dtype (with
  // sharding of weights of one dtype and unit) lie side by side in one piece of
  // memory: linear() makes one product of neighbours. With kParameters what is
  // not owned is released then. With kLeaveAlone there is memory of gradients
  // alone. Gradients are zero.
  ParamMemory(
      const BucketPlan& plan,
      std::span<Param> params,
      FlatWeights place,
      Sharding sharding);

  // Of those that train, by bucket.
  std::span<const FlatSegment> segments() const {
    return {segments_.data(), trained_segments_};
  }
  // Behind them those of frozen ones.
  const std::vector<FlatSegment>& all_segments() const { return segments_; }
  std::span<const Param> params() const { return params_; }
  Sharding sharding() const { return sharding_; }
  // The same contents under another plan. Who holds views of the old memory
  // learns it from flat_memory().
  void move_to(const BucketPlan& plan);
  // Raised by each move.
  int64_t layout_version() const { return layout_version_; }
  // What optimizers over this memory watch.
  const FlatMemoryPtr& flat_memory() const { return flat_memory_; }
  // The segment of whose owned weights a tensor is a view; std::nullopt: there
  // is none.
  std::optional<size_t> segment_of(const torch::Tensor& owned) const;
  // The groups of parameters are others than before. Without sharding.
  void follow_groups();

  // ---- weights
  // With kMove: takes the values of parameters that were given other memory, as
  // torch::load() does, and makes them views again; where one of them trains
  // raises FlatMemory::weights_version. Throws ConfigError naming one of those
  // with Sharding::kParameters: see FullWeights.
  void take_back();
  // Whether there is something to take back.
  bool are_replaced() const;
  // Changes whenever an optimizer has written flat weights.
  int64_t version_of_weights() const;

  // ---- gradients
  // Of a parameter that trains: Param::main_grad.
  const torch::Tensor& main_grad(int param) const {
    return params_[static_cast<size_t>(param)].main_grad;
  }
  // Where those of such a view of owned weights are, flat; undefined: it is
  // none.
  torch::Tensor main_grad_of(const torch::Tensor& owned) const;
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // A segment's owned range holds the sum over ranks. With sharding, what is
  // not owned is cleared; where gradients are divided the sum is added to the
  // shard.
  void take_reduced(size_t segment);
  // Changes whenever a main_grad was written by an ATen operation.
  int64_t version_of_gradients() const;

 private:
  void lay_out(const BucketPlan& plan);
  void add_segments(const BucketPlan& plan);
  void add_weights(const BucketPlan& plan);
  void add_gradients(const BucketPlan& plan);
  void note_owned_parts();
  static bool is_replaced(const Param& param);

  std::span<Param> params_;
  size_t trained_;  // so many of params_
  FlatWeights place_;
  Sharding sharding_;
  std::vector<FlatSegment> segments_;  // by bucket
  size_t trained_segments_ = 0;        // so many of segments_
  int64_t layout_version_ = 0;
  FlatMemoryPtr flat_memory_;
  std::vector<torch::Tensor> flat_weights_;  // by dtype and unit, kMove only
  std::vector<torch::Tensor> flat_grads_;    // by dtype and unit
};

}  // namespace brigade
