// The parameters of a module, or of a model part, on this rank: one list of
// them, their flat memory, and what gathers the weights that other ranks own.
// Gradient synchronisation, optimizers, checkpoints and low-communication
// training walk it. visit() reads each parameter with its states, and fill()
// writes them, whatever part of them this rank holds.
//
// Changed by the trainer's thread, between backwards.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"
#include "brigade/param/param_memory.h"
#include "brigade/param/sharding.h"
#include "brigade/schedule/bucket_plan.h"
#include "brigade/sharding/gathered_weights.h"

namespace brigade {

class ParamSet {
 public:
  // Called with each parameter and its states.
  using Visit = std::function<void(const Param& param)>;
  // For each of trained() its states.
  using StatesByParam = std::vector<std::vector<State>>;

  // All of `params` have a group. Those that train come first, then frozen ones
  // that share memory with no other tensor, then the rest; otherwise their
  // order stays.
  explicit ParamSet(std::vector<Param> params);
  ParamSet(const ParamSet&) = delete;
  ParamSet& operator=(const ParamSet&) = delete;

  // ---- the list

  // Those that require a gradient; the others have neither gradient nor state.
  std::span<const Param> trained() const { return {params_.data(), trained_}; }
  std::span<const Param> frozen() const {
    return std::span(params_).subspan(trained_);
  }
  std::span<const Param> all() const { return params_; }
  // The index in trained(); -1: it is not among them.
  int index_of(const torch::Tensor& param) const;
  int index_of(const std::string& name) const;
  // Parameters whose group was `from` belong to `to`.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);

  // ---- memory and weights of other ranks

  // Gives trained(), and the frozen parameters that share no memory, a place in
  // flat memory; called once, before all that follows. `plan` is for trained(),
  // `options` those that it was made with.
  void lay_out(
      const BucketPlan& plan,
      const BucketPlanOptions& options,
      FlatWeights place,
      Sharding sharding,
      GatherMode gather);
  // Moves the memory, with its contents, to another plan. Parameters keep their
  // states, which lie where they did.
  void move_to(const BucketPlan& plan, const BucketPlanOptions& options);
  // The flat memory of weights and gradients.
  ParamMemory& memory() { return *memory_; }
  // See above.
  const ParamMemory& memory() const { return *memory_; }
  // What is asked before weights are read, which may wait for other ranks.
  GatheredWeights& weights() const { return *weights_; }

  // ---- states (Param::states)

  // The states of trained() become `mine`, which has an entry for each: this
  // rank's part, flat, of the elements that it owns, or of all; without
  // elements if it has none. The same names and dtypes on all ranks of a
  // parameter's group. Returns the former ones.
  StatesByParam swap_states(StatesByParam mine);
  // The states of a segment's parameters, in the order of its slots, shaped as
  // these. With sharding they are gathered, collectively; otherwise they are
  // views.
  std::vector<std::vector<State>> gather_states(
      const FlatSegment& segment) const;
  // Zeros, shaped as the parameter's states: to be filled in for keep_states().
  std::vector<State> zero_states(int param) const;
  // This rank's part of whole states becomes the parameter's.
  void keep_states(int param, const std::vector<State>& whole) const;

  // ---- the walks

  // Calls `visit` with each parameter and its states (a frozen one has none),
  // in an order that all ranks share. Sharded tensors are gathered for the
  // call, collectively, and are valid only until it returns; the others are
  // views.
  void visit(const Visit& visit) const;
  // Calls `fill` with each parameter and its states and keeps what it writes
  // into the tensors (this rank's part, if they are sharded). Collective if
  // weights are sharded (ZeRO-3).
  void fill(const Visit& fill);
  // By group, the tensors that are equal on its ranks: weights unless they are
  // sharded, and without sharding the states, as NAME.PARAMETER. Views: valid
  // until the next step.
  std::vector<std::pair<CommunicatorPtr, std::vector<State>>> replicas() const;

 private:
  bool is_sharded() const { return memory_->sharding() != Sharding::kNone; }
  const Param& param(int index) const {
    return params_[static_cast<size_t>(index)];
  }
  // A copy with whole states. Precondition: no sharding.
  Param with_whole_states(const Param& param) const;
  void visit_sharded(const Visit& visit) const;
  void visit_frozen(const Visit& visit) const;
  void fill_sharded(const Visit& fill);

  std::vector<Param> params_;
  size_t trained_ = 0;
  size_t laid_out_ = 0;  // so many have a place in flat memory
  std::unordered_map<const void*, int> index_of_;  // of trained(), by tensor
  std::unique_ptr<ParamMemory> memory_;
  std::unique_ptr<GatheredWeights> weights_;
};

}  // namespace brigade
