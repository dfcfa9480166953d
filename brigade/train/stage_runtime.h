// One pipeline stage on this rank with all that trains it: its part of the
// model, its gradient synchronisation and its optimizer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/optim/param_stepper.h"
#include "brigade/schedule/weight_gradient_queue.h"
#include "brigade/train/gradient_check.h"
#include "brigade/train/preference_loss.h"

namespace brigade {

class StageRuntime {
 public:
  // Collective over the mesh's replicas(): initial weights, then buckets. They
  // are the group of every parameter until reduce_over(), but of experts that
  // are divided: theirs is expert_replicas(). `common`: what the contexts of
  // all stages have.
  StageRuntime(
      const TrainConfig& config,
      const ModelContext& common,
      const ProcessMesh& mesh,
      int stage,
      const ModelPart& part);

  int stage() const { return stage_; }
  DecoderModel& model() { return *model_; }
  ParamStepper& stepper() { return *stepper_; }
  GradSync& sync() { return stepper_->sync(); }
  Optimizer& optimizer() { return stepper_->optimizer(); }
  // That of the last stage with a loss of pairs; else null.
  PreferenceLoss* preference_loss() { return preference_loss_.get(); }
  const std::shared_ptr<WeightGradientQueue>& weight_gradients() const {
    return weight_gradients_;
  }

  // Gradient reduction of this stage: see ExecutorCallbacks.
  void hold_reduction() { sync().set_accumulate_only(true); }
  void begin_reduction() { sync().set_accumulate_only(false); }
  // All gradients are final, although no backward follows.
  void reduce_now();
  // What becomes of buckets that are full, from the next backward on.
  enum class Buckets {
    kReduced,
    kNotedAndReduced,  // and take_notes() returns what was reduced
    kNoted,            // gradients stay this rank's own: then end_rehearsal()
  };
  void treat_buckets(Buckets treatment) { wire_->treatment = treatment; }
  // Once the step's gradients are finished, or its rehearsal has ended.
  GradientNotes take_notes() { return std::exchange(wire_->notes, {}); }
  // Ends the backwards of buckets that are noted alone: nothing of them stays.
  void end_rehearsal();
  // Between steps: from the next one on gradients are summed over the replicas
  // of this rank's group (ProcessMesh::replica_groups()), or of all groups.
  // What grad_wire lost so far is dropped. Nothing where it is so already.
  enum class Span { kOwnGroup, kAllGroups };
  void reduce_over(const ProcessMesh& mesh, Span span);
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

  // With an optimizer that averages weights (Optimizer::averages_weights()),
  // forward has the averages until hide_averages(). Collective over the
  // replicas.
  void show_averages();
  void hide_averages();

  // The parameters of this part, to walk them.
  ParamSet& params() { return sync().param_set(); }
  const ParamSet& params() const { return stepper_->sync().param_set(); }

 private:
  // With a hook that does what wire_ says.
  GradSyncOptions sync_options();
  // The part's parameters with their initial weights, each in its unit.
  std::vector<Param> make_params(const ProcessMesh& mesh);
  // Called before a unit's forward, and with stage 3 its backward.
  void use_weights_of(const ModelUnit& unit);

  // What reduces buckets now.
  struct Wire {
    BucketHook hook;
    Buckets treatment = Buckets::kReduced;
    GradientNotes notes;
  };

  int stage_;
  ModelPart part_;
  const TrainConfig config_;
  HookMemoryPtr wire_memory_ = std::make_shared<HookMemory>();
  std::shared_ptr<Wire> wire_;  // shared with the sync's hook
  std::shared_ptr<WeightGradientQueue> weight_gradients_;
  std::shared_ptr<PreferenceLoss> preference_loss_;  // shared with the model
  std::shared_ptr<DecoderModel> model_;
  std::map<ModelUnit, int> weight_units_;  // Param::unit
  std::unique_ptr<ParamStepper> stepper_;
};

using Stages = std::vector<std::unique_ptr<StageRuntime>>;

}  // namespace brigade
