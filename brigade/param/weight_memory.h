// The flat memory of a model part's weights, in which the parameters are views:
// a planned bucket is a range of it, and of each bucket this rank owns a range,
// all of it without sharding. With Sharding::kParameters each rank keeps the
// range that it owns, and the rest comes and goes (ShardedWeights).
//
// Changed between backwards by the trainer's thread; ShardedWeights reads its
// segments in forward and backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "brigade/comm/flat_range.h"
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
  std::vector<BucketSlot> slots;
  FlatRange owned;
  // [owned.numel]: Sharding::kParameters only: the owned weights.
  torch::Tensor weight_shard;
  int unit = 0;      // see Param
  ParamGroup group;  // of its parameters: they are reduced and gathered over it
  // Of those that train, in GradBuffer: [numel], padding is zero.
  torch::Tensor main_grad;
  // [owned.numel]: only where gradients are divided (divides_gradients()) and
  // main_grad holds them until they are reduced: their sum over ranks and
  // micro-batches.
  torch::Tensor grad_shard;

  // [owned.numel]: what an optimizer steps and reads.
  torch::Tensor owned_weight() const;
  torch::Tensor owned_main_grad() const;
};

// Whether two tensors begin at the same element of the same storage.
bool is_same_memory(const torch::Tensor& a, const torch::Tensor& b);

// The dtype of a parameter's main_grad: float32 for 16 bits, else its own.
torch::ScalarType main_grad_dtype(torch::ScalarType param);
// Whether its gradients accumulate in float32 instead.
bool is_16_bit(torch::ScalarType dtype);

// What planning knows of the parameters.
std::vector<BucketParam> bucket_params_of(const std::vector<Param>& params);

// `plan` for the first of `params`, those that it plans, and further buckets
// behind it for the rest, which are frozen.
BucketPlan with_frozen(
    BucketPlan plan,
    const std::vector<Param>& params,
    const BucketPlanOptions& options);

class WeightMemory {
 public:
  // `plan` of `params`. With kMove holds their values and makes them views of
  // it. All buckets of one dtype (with kParameters of one dtype and unit) lie
  // side by side in one piece of memory: linear() makes one product of
  // neighbours. With kParameters what is not owned is released then. With
  // kLeaveAlone the segments are ranges without memory.
  WeightMemory(
      const BucketPlan& plan,
      std::vector<Param> params,
      FlatWeights place,
      Sharding sharding);

  const std::vector<FlatSegment>& segments() const { return segments_; }
  const std::vector<Param>& params() const { return params_; }

  // With kMove: takes the values of parameters that were given other memory, as
  // torch::load() does, and makes them views again. Returns whether one of them
  // trains. Throws ConfigError naming one of those with Sharding::kParameters:
  // see FullWeights.
  bool take_back();
  // Whether there is something to take back.
  bool are_replaced() const;
  // Changes whenever an optimizer has written flat weights.
  int64_t version() const;
  // Without sharding: what was reduced over `from` is reduced over `to`.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);

 private:
  // The memory of all buckets of one dtype and unit, dealt out bucket by
  // bucket.
  struct Flat {
    int64_t numel = 0;
    int64_t used = 0;
    torch::Tensor weight;
  };

  bool is_replaced(size_t param) const;
  void
  add_memory(FlatSegment& segment, const PlannedBucket& planned, Flat& flat);

  std::vector<Param> params_;
  FlatWeights place_;
  Sharding sharding_;
  std::vector<FlatSegment> segments_;   // by bucket
  std::vector<torch::Tensor> flats_;    // by dtype and unit, kMove only
  std::vector<torch::Tensor> weights_;  // by parameter, kMove only
};

}  // namespace brigade
