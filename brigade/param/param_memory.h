// The flat memory of a model part's parameters: the weights and, if they train,
// their gradients. A planned bucket is a range of both, and parameters are
// views of it. This rank owns a range of each bucket (without sharding all of
// it): norms, clipping and optimizers walk the owned ranges. With
// Sharding::kParameters (ZeRO-3, FSDP) each rank keeps the weights that it
// owns, and the others are gathered and freed (ShardedWeights).
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
  // [numel], only if the memory holds weights; with Sharding::kParameters it
  // has no memory most of the time.
  torch::Tensor weight;
  std::vector<RunPart> slots;
  FlatRange owned;
  // [owned.numel], with Sharding::kParameters only: the owned weights.
  torch::Tensor weight_shard;
  // All its parameters have this one's dtype, group and mean_divisor, and with
  // kParameters its unit.
  const Param* first_param = nullptr;
  // [numel], only if the parameters train; padding is zero.
  torch::Tensor main_grad;
  // [owned.numel], only if gradients are divided (divides_gradients()): their
  // sum over ranks and micro-batches; main_grad holds them until they are
  // reduced.
  torch::Tensor grad_shard;

  // [owned.numel]: what an optimizer steps and reads.
  torch::Tensor owned_weight() const;
  torch::Tensor owned_main_grad() const;
  // Where in owned_weight() a view of it begins; std::nullopt if it is no such
  // view.
  std::optional<int64_t> owned_offset(const torch::Tensor& view) const;
};

// Whether two tensors begin at the same element of the same storage.
bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b);

// The dtype of a parameter's main_grad: float32 for 16 bits, else its own.
torch::ScalarType main_grad_dtype(torch::ScalarType param);
// Whether gradients of this dtype accumulate in float32.
bool is_16_bit(torch::ScalarType dtype);

// The descriptions of the parameters that plan_buckets() takes. Units divide
// buckets only with Sharding::kParameters.
std::vector<BucketParam> bucket_params_of(
    std::span<const Param> params,
    Sharding sharding);

// Returns `plan`, which is for the first of `params`, followed by further
// buckets for the rest, which are frozen.
BucketPlan with_frozen(
    BucketPlan plan,
    std::span<const Param> params,
    Sharding sharding,
    const BucketPlanOptions& options);

// Tells an optimizer over flat memory what its owner has changed.
struct FlatMemory {
  // False once the owner has moved to other memory: only views that optimizers
  // still hold read or write this one.
  bool is_current = true;
  // Those that RunPart::param counts; empty once the owner has moved.
  std::span<const Param> params = {};
  // Raised when weights were replaced from outside (broadcast after a join):
  // masters must be set to them.
  int64_t weights_version = 0;
  // If not empty, called before a step reads gradients; throws if the step
  // would be wrong.
  std::function<void()> before_step = {};
  // If not empty, called after `numel` elements were stepped.
  std::function<void(int64_t numel)> after_step = {};
};
// Shared by the memory's owner and its optimizers.
using FlatMemoryPtr = std::shared_ptr<FlatMemory>;

class ParamMemory {
 public:
  // `plan` is for `params`, which outlive this object and of which those that
  // train come first; each learns its place (Param::main_grad). With kMove the
  // memory holds their values, and they become views of it. With kLeaveAlone it
  // holds gradients alone. All buckets of one dtype (with kParameters of one
  // dtype and unit) lie side by side in one piece of memory, so that linear()
  // can make one product of neighbours. With kParameters weights that this rank
  // does not own are released at once. Gradients are zero.
  ParamMemory(
      const BucketPlan& plan,
      std::span<Param> params,
      FlatWeights place,
      Sharding sharding);

  // The segments of parameters that train, by bucket.
  std::span<const FlatSegment> segments() const {
    return {segments_.data(), trained_segments_};
  }
  // segments(), followed by those of frozen parameters.
  const std::vector<FlatSegment>& all_segments() const { return segments_; }
  std::span<Param> params() const { return params_; }
  Sharding sharding() const { return sharding_; }
  // Moves the contents to memory of another plan. Holders of views of the old
  // memory learn it from flat_memory().
  void move_to(const BucketPlan& plan);
  // Raised by each move.
  int64_t layout_version() const { return layout_version_; }
  // Watched by optimizers over this memory.
  const FlatMemoryPtr& flat_memory() const { return flat_memory_; }
  // The segment whose owned weights a tensor is a view of; std::nullopt if
  // there is none.
  std::optional<size_t> segment_of(const torch::Tensor& owned) const;

  // ---- weights

  // With kMove: copies the values of parameters that have got other memory, as
  // by torch::load(), and makes them views again; if one of them trains, raises
  // FlatMemory::weights_version. Throws UsageError naming one whose shape or
  // dtype is not the flat weight's and, with Sharding::kParameters, naming any:
  // see FullWeights.
  void take_back();
  // Whether take_back() has something to do.
  bool are_replaced() const;
  // Changes whenever an optimizer has written flat weights.
  int64_t version_of_weights() const;

  // ---- gradients

  // Param::main_grad of a parameter that trains.
  const torch::Tensor& main_grad(int param) const {
    return params_[static_cast<size_t>(param)].main_grad;
  }
  // The gradients of a view of owned weights, flat; undefined if it is none.
  torch::Tensor main_grad_of(const torch::Tensor& owned) const;
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // Called when a segment's owned range holds the sum over ranks. With
  // Sharding::kOptimizer, clears the rest of the segment; if gradients are
  // divided, adds the sum to the shard and clears the whole segment.
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
