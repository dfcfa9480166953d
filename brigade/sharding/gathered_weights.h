// The weights of a sharded module, on their way from the ranks that own them:
// with Sharding::kOptimizer and kGradients each bucket's are gathered after the
// optimizer's step and waited for when they are read; with kParameters each
// unit's are gathered when it is used (ShardedWeights). Without sharding they
// are only waited for where an optimizer still steps them.
//
// Called by the trainer's thread; what units() returns also by the thread of
// backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param_memory.h"
#include "brigade/sharding/sharded_weights.h"

namespace brigade {

class GatheredWeights {
 public:
  // Of those that train, in `memory`, which outlives it.
  GatheredWeights(const ParamMemory& memory, GatherMode mode);
  ~GatheredWeights();  // waits for what is under way
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Collective, after an optimizer stepped what this rank owns: exchanges the
  // weights, in the order of forward; see GatherMode. late: segments that
  // `finish` steps, which is called before one of them is needed, with
  // GatherMode::kInPlace at once.
  void after_step(
      std::vector<bool> late = {},
      std::function<void()> finish = {});
  // Whether there is something to wait for.
  bool are_under_way() const;
  // Until then no weight may be read.
  void need_all();
  // Until then no weight of this segment may be read.
  void need(size_t segment);
  // Sharding::kParameters: the weights, of which none can be read otherwise.
  // Null with any other sharding.
  ShardedWeights* units() const { return units_.get(); }

  // The weights are what all ranks have now.
  void note_current() { gathered_version_ = memory_->version_of_weights(); }
  // ConfigError where weights were stepped and not exchanged.
  void throw_if_stale() const;

 private:
  Sharding sharding() const { return memory_->sharding(); }
  bool is_late(size_t segment) const {
    return segment < late_.size() && late_[segment];
  }
  void launch(size_t segment);
  void finish_late();

  const ParamMemory* memory_;
  GatherMode mode_;
  std::vector<WorkPtr> works_;    // by bucket; null: none under way
  std::vector<bool> late_;        // by bucket; empty: none
  std::function<void()> finish_;  // see after_step()
  int64_t gathered_version_ = 0;  // of the flat weights, when exchanged last
  std::unique_ptr<ShardedWeights> units_;
};

}  // namespace brigade
