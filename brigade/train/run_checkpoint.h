// A run's stages to and from a checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/checkpoint/save.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/run/run_observer.h"
#include "brigade/train/local_training.h"
#include "brigade/train/router_use.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

struct RunPosition {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t samples = 0;        // sequences; the next one to train on
  int64_t skipped_steps = 0;  // of `steps`, those that updated nothing
  // What routers chose in the last step that updated something; empty: nothing
  // asks for it. As saved_choices() reads it, not load_run().
  ChoicesByLayer choices = {};
};

using Stages = std::vector<std::unique_ptr<StageRuntime>>;

// Collective over `world`. The checkpoint that the run continues, verified:
// checkpoint.load_path, or for "auto" the newest valid one of the run's folder;
// what is rejected is reported with its reason. std::nullopt: nothing is to be
// continued, because load_path is empty, or is "auto" and the folder has never
// held a checkpoint. Throws DataError when there is one and none is valid.
std::optional<std::filesystem::path> find_checkpoint_to_continue(
    const TrainConfig& config,
    Communicator& world,
    RunObserver& observer);

struct LoadedRun {
  RunPosition position;
  std::string run;  // the run's id; empty: an old checkpoint
  // False: low-communication training whose groups the checkpoint does not
  // have; all begin with its weights, and the mean of its groups' moments.
  bool has_groups = true;
  // The optimizer of the checkpoint, where it is another one than this run's,
  // whose states then begin from zero; empty: the same.
  std::string other_optimizer;
};

// What routers chose in the checkpoint's last step (RunPosition::choices);
// empty where it does not say. Throws DataError where it says it of another
// model.
ChoicesByLayer saved_choices(
    const std::filesystem::path& checkpoint,
    const DecoderConfig& decoder);

// Fills the stages, whatever layout wrote them, and `local`, which is null
// without low-communication training. What grad_wire keeps is in
// wire_checkpoint.h.
LoadedRun load_run(
    const std::filesystem::path& checkpoint,
    const Stages& stages,
    LocalTraining* local = nullptr);

// This rank's share of the checkpoint: views of the stages' tensors. Replicas
// (dp and cp) divide the tensors that they have in common between them.
// `local`: as in load_run().
CheckpointToSave checkpoint_of(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const Stages& stages,
    const nlohmann::json& data,
    const RunPosition& position,
    const std::string& run,
    LocalTraining* local = nullptr);

}  // namespace brigade
