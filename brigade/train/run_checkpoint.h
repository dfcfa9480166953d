// A run's training to and from a checkpoint.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "brigade/checkpoint/save.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/run/run_observer.h"
#include "brigade/train/train_step.h"

namespace brigade {

struct RunPosition {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t samples = 0;        // sequences; the next one to train on
  int64_t skipped_steps = 0;  // of `steps`, those that updated nothing
};

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
  // Of the groups' last steps, so many are in no weights that this run reads.
  int64_t unmerged_steps = 0;
  // The optimizer of the checkpoint, where it is another one than this run's,
  // whose states then begin from zero; empty: the same.
  std::string other_optimizer;
};

// Fills the step's stages, whatever layout wrote them, with what else goes on
// from step to step. What grad_wire keeps is in wire_checkpoint.h.
LoadedRun load_run(const std::filesystem::path& checkpoint, TrainStep& step);

// This rank's share of the checkpoint: views of the stages' tensors. Replicas
// (dp and cp) divide the tensors that they have in common between them.
CheckpointToSave checkpoint_of(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    TrainStep& step,
    const nlohmann::json& data,
    const RunPosition& position,
    const std::string& run);

}  // namespace brigade
