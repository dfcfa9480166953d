// Low-communication training in a checkpoint. Its weights are the common ones,
// and its moments those of group 0, so that any other run can continue it; what
// else a run needs to go on bit for bit is under "outer.":
//
//   outer.momentum.NAME, outer.pending.NAME   the outer optimizer's
//   outer.K.weight.NAME                       group K's own, in float32
//   outer.K.STATE.NAME                        of groups after the first: the
//                                             optimizer's
//   outer.K.errors.NAME                       what rounding lost, of K's
//   changes
#pragma once

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/train/local_training.h"

namespace brigade {

// Where the checkpoint has several groups, makes the moments of a parameter
// their mean: for runs that are not these groups.
void read_mean_moments(const Checkpoint& checkpoint, const Param& param);

// Adds this rank's share. Waits for what is under way.
void add_local_parts(
    LocalTraining& local,
    const ProcessMesh& mesh,
    CheckpointToSave& checkpoint);

// The stages have the weights and moments of the checkpoint, of step `step`:
// makes them those of this rank's group. Returns false where the checkpoint
// does not have as many groups: all then begin with the common weights, the
// outer momentum and the mean of the moments.
bool load_local(
    const Checkpoint& checkpoint,
    int64_t step,
    LocalTraining& local);

}  // namespace brigade
