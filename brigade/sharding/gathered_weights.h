// Gathers the weights of a sharded module from the ranks that own them. With
// ZeRO-1 and ZeRO-2 (Sharding::kOptimizer, kGradients) each bucket's are
// gathered after the optimizer's step and waited for when they are read; with
// ZeRO-3, FSDP (kParameters), each unit's are gathered when it is used
// (ShardedWeights). Without sharding weights are waited for only if an
// optimizer still steps them.
//
// Code that reads weights asks for them first, whatever the sharding: by unit
// (Param::unit) with use(), or hold() and let_go(); by parameter with need(),
// except with kParameters.
//
// Called by one thread at a time: the trainer's, and during a backward that of
// backward, whose first hook waits for all weights and which with kParameters
// uses and frees units.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param_memory.h"
#include "brigade/sharding/sharded_weights.h"

namespace brigade {

// What an optimizer's step leaves to be done.
struct LateStep {
  // The parameters that `finish` still steps, by index; this rank owns some of
  // them, all or none. The same ones on all ranks; empty: `finish` waits for
  // nobody, and is called at once.
  std::vector<int> params = {};
  std::function<void()> finish = {};  // empty: nothing is left
};

class GatheredWeights {
 public:
  // Gathers the parameters in `memory` that train, with kParameters the frozen
  // ones too; `memory` outlives this object.
  GatheredWeights(const ParamMemory& memory, GatherMode mode);
  ~GatheredWeights();  // waits for what is under way
  GatheredWeights(const GatheredWeights&) = delete;
  GatheredWeights& operator=(const GatheredWeights&) = delete;

  // Collective, after an optimizer has stepped this rank's ranges: gathers the
  // weights, in the order of forward (see GatherMode); with kParameters only
  // prefetches the first unit, and throws UsageError while a unit is held.
  // late.finish is called before one of late.params is needed (with
  // GatherMode::kInPlace, or if there are none, at once).
  void after_step(LateStep late = {});
  // Whether need_all() has something to wait for.
  bool are_under_way() const;
  // Waits for all weights; none may be read before.
  void need_all();
  // Waits for the weight of a parameter that trains, and for those that are
  // gathered with it; none of them may be read before.
  void need(const Param& param) { need_segment(param.owned.run); }

  // Makes the weights of a unit readable, with kParameters until another unit
  // is used (ShardedWeights::use()), otherwise until the next step. An unknown
  // unit stands for all weights; with kParameters it throws UsageError.
  void use(int unit);
  // The same until let_go(), called once per hold().
  void hold(int unit);
  // Ends a hold().
  void let_go(int unit);
  // With kParameters what gathers and frees the units; else null.
  ShardedWeights* units() const { return units_.get(); }
  // Adds `change`, shaped as the parameter, to a frozen weight that shares no
  // memory, also where this rank has only a part of it. Precondition: nothing
  // is held.
  void add_to(const Param& param, const torch::Tensor& change);

  // ---- what brackets a backward: without units() these do nothing

  void end_pass();         // see ShardedWeights::end_pass()
  void expect_pass();      // see ShardedWeights::expect_pass()
  void abandon();          // see ShardedWeights::abandon()
  void throw_if_failed();  // see ShardedWeights::throw_if_failed()

  // As passed to the constructor.
  GatherMode mode() const { return mode_; }
  // The present weights are the same on all ranks.
  void note_current() { gathered_version_ = memory_->version_of_weights(); }
  // Throws UsageError if weights were stepped and not gathered.
  void throw_if_stale() const;

 private:
  Sharding sharding() const { return memory_->sharding(); }
  bool is_late(size_t segment) const {
    return segment < late_.size() && late_[segment];
  }
  void need_segment(size_t segment);
  void launch(size_t segment);
  void finish_late();

  const ParamMemory* memory_;
  GatherMode mode_;
  std::vector<WorkPtr> works_;    // by bucket; null: none under way
  std::vector<bool> late_;        // by bucket; empty: none
  std::function<void()> finish_;  // LateStep::finish
  int64_t gathered_version_ = 0;  // of the flat weights, when last gathered
  std::unique_ptr<ShardedWeights> units_;
};

// Holds one unit at a time, and none once it is destroyed.
class HeldUnit {
 public:
  explicit HeldUnit(GatheredWeights& weights) : weights_(weights) {}
  ~HeldUnit() { let_go(); }
  HeldUnit(const HeldUnit&) = delete;
  HeldUnit& operator=(const HeldUnit&) = delete;

  // Holds this unit instead of the one before.
  void hold(int unit) {
    if (unit == unit_)
      return;
    let_go();
    weights_.hold(unit);
    unit_ = unit;
  }
  // Holds none.
  void let_go() {
    if (unit_ >= 0)
      weights_.let_go(std::exchange(unit_, -1));
  }

 private:
  GatheredWeights& weights_;
  int unit_ = -1;
};

}  // namespace brigade
