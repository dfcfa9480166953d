// One pipeline stage on this rank with all that trains it: its part of the
// model, its gradient synchronisation and its optimizer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/model/llama.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/optim/optimizer.h"
#include "brigade/schedule/weight_gradient_queue.h"
#include "brigade/train/optimizer_groups.h"
#include "brigade/train/weight_units.h"

namespace brigade {

// A parameter on this rank and everything that belongs to it, whole.
struct ParamState {
  std::string name;
  ParamShard shard;
  bool is_copy_for_head;    // the last stage's copy of a tied embedding
  const ParameterRow* row;  // lives as long as its StageRuntime
  torch::Tensor weight;     // of the model's dtype
  // What the optimizer keeps of it, shaped as the weight, in the order of
  // Optimizer::kept().
  struct State {
    std::string name;
    torch::Tensor tensor;
  };
  std::vector<State> states;

  // What the weight lacks of its master; undefined: it is its own master.
  torch::Tensor master_low() const;
};

class StageRuntime {
 public:
  // Collective over the mesh's replicas(): initial weights, then buckets.
  StageRuntime(
      const TrainConfig& config,
      const LlamaConfig& llama,
      const ProcessMesh& mesh,
      int stage,
      const ModelPart& part);

  int stage() const { return stage_; }
  Llama& model() { return *model_; }
  GradSync& sync() { return *sync_; }
  Optimizer& optimizer() { return *optimizer_; }
  const std::shared_ptr<WeightGradientQueue>& weight_gradients() const {
    return weight_gradients_;
  }

  // Gradient reduction of this stage: see ExecutorCallbacks.
  void hold_reduction() { sync_->set_accumulate_only(true); }
  void begin_reduction() { sync_->set_accumulate_only(false); }
  // All gradients are final, although no backward follows.
  void reduce_now();
  // Between steps: from the next one on gradients are summed over `group`,
  // which at first is mesh.replicas(). What grad_wire lost so far is dropped.
  // Nothing where it is so already.
  void reduce_over(const CommunicatorPtr& group);
  // What grad_wire keeps from step to step.
  HookMemory& wire_memory() { return *wire_memory_; }

  // Waits for the reduction, then adds up what replicas of a parameter on other
  // tp ranks and on the other end of a tied embedding computed.
  void finish_gradients(const ProcessMesh& mesh);
  // This rank's part of the sum of squares of all gradients, each parameter
  // counted once over the model's ranks: a double scalar on their device.
  torch::Tensor sum_of_squares() const;
  // The first parameter whose gradient is not finite; empty: none.
  std::string first_non_finite() const;
  void step(double lr, double grad_scale);
  // Ends a step without an update: gradients are cleared, weights and moments
  // stay.
  void skip_step();

  // Calls `visit` with each parameter, in an order that all ranks share. What
  // is sharded is gathered for the call, collectively over dp x cp; the tensors
  // are views, and valid only until it returns.
  void visit_states(
      const std::function<void(const ParamState& state)>& visit) const;
  // Calls `fill` with each parameter and keeps what it writes into the tensors:
  // this rank's part, where they are sharded. Collective over dp x cp where
  // weights are (ZeRO's stage 3).
  void fill_states(const std::function<void(const ParamState& state)>& fill);
  // What the ranks of dp x cp hold alike, by name: weights unless they are
  // sharded, and without sharding the optimizer's state. Views: valid until the
  // next step.
  std::vector<std::pair<std::string, torch::Tensor>> replicas() const;
  int64_t numel() const;

 private:
  bool is_sharded() const {
    return sync_->options().sharding != Sharding::kNone;
  }
  // With a hook that does what wire_ says.
  GradSyncOptions sync_options();
  void make_optimizer();
  // Without sharding.
  std::vector<ParamState> states() const;
  // A parameter without its states.
  ParamState bare(size_t param) const;
  void visit_sharded(
      const std::function<void(const ParamState& state)>& visit) const;
  void await_weights_of(const std::string& module);
  // Of ZeRO's stage 3, in forward and in backward.
  void use_weights_of(const std::string& module);
  bool counts_in_norm(int param) const;

  // What reduces buckets now, and over which group.
  struct Wire {
    BucketHook hook;
    CommunicatorPtr group;
  };

  int stage_;
  ModelPart part_;
  const TrainConfig config_;
  HookMemoryPtr wire_memory_ = std::make_shared<HookMemory>();
  std::shared_ptr<Wire> wire_;        // shared with the sync's hook
  std::vector<double> weight_decay_;  // by parameter
  std::shared_ptr<WeightGradientQueue> weight_gradients_;
  std::shared_ptr<Llama> model_;
  std::vector<ParameterRow> rows_;  // of this part, in the sync's order
  std::vector<ParamShard> shards_;  // by parameter
  std::unique_ptr<GradSync> sync_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<OptimizerGroups::Place> places_;         // by parameter
  std::map<std::string, std::vector<int>> params_of_;  // by module, of forward
  WeightUnits weight_units_;
  int64_t optimizer_layout_ = 0;
};

// full[begin:end] along the cut, padded with zeros: the local tensor.
torch::Tensor take_shard(const torch::Tensor& full, const ParamShard& shard);

}  // namespace brigade
