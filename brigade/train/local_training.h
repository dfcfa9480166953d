// Low-communication training on one rank (DiLoCo; distributed.local_steps):
// groups of replicas train apart from one another; every so many steps the
// fragments of the model are exchanged, by a schedule
// (schedule/fragment_schedule.h) that all ranks follow. See
// docs/low_communication.md.
//
// Called by the trainer's thread between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/config/train_config.h"
#include "brigade/schedule/fragment_schedule.h"
#include "brigade/train/outer_fragment.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

class LocalTraining {
 public:
  // `stages` have the initial weights, the same in all groups. `mesh`, divided
  // into groups, and `stages` must outlive it.
  LocalTraining(
      const TrainConfig& config,
      const ProcessMesh& mesh,
      const Stages& stages);

  // Whether step `step` is data parallel over all groups, which are equal then
  // and begin their first round with what they have learned together.
  bool is_parallel(int64_t step) const {
    return is_data_parallel(schedule_, step);
  }
  // Collective: what is due after step `step`. Returns how long it took in
  // nanoseconds.
  int64_t after_step(int64_t step);
  // Which groups the last after_step() left out and why, one line each, the
  // same on all ranks.
  const std::vector<std::string>& left_out() const { return left_out_; }

  int groups() const { return mesh_.replica_groups(); }
  int group() const { return mesh_.replica_group(); }

  // Calls `visit`, for checkpoints, with each parameter of this rank, in an
  // order that all ranks of the group share, and with its states, those of the
  // exchange included (OuterFragment::states()): views, to be read or written.
  // Waits for what is under way.
  void visit(const std::function<void(const Param& param)>& visit);
  // Whether the parameter has been sent, and is not merged.
  bool is_under_way(const Param& param) const;
  // The stages' weights were loaded: they are the common ones, nothing is under
  // way, and momentum and errors are zero.
  void restart();
  // Whether the schedule has sent the parameter by `step`, and not merged it.
  bool will_be_under_way(const Param& param, int64_t step) const;
  // What that is counts as sent, where it has been read (`is_there`) on all
  // ranks. Collective over the mesh.
  void resume_under_way(int64_t step, bool is_there);

 private:
  // What this rank has of a fragment that the same ranks hold.
  struct Part {
    int fragment;
    bool is_divided;  // experts, where they are
    std::unique_ptr<OuterFragment> exchange;
  };
  FragmentParams params_of(const Part& part) const;
  const Part& part_of(const Param& param) const;
  bool is_divided(const Param& param) const;
  // Sends this rank's part of a fragment, of which it may have nothing.
  void send(int fragment);
  // By group: whether its change of the fragment is not to count. An all-reduce
  // of 8 bytes per group over all ranks.
  std::vector<bool> judge(int fragment);

  FragmentSchedule schedule_;
  const ProcessMesh& mesh_;
  const Stages& stages_;
  double norm_limit_;
  std::vector<std::string> left_out_;
  SequentialWorker worker_;  // outlives the fragments, whose exchanges it runs
  // By fragment; those of which this rank has nothing are not there.
  std::vector<Part> parts_;
};

}  // namespace brigade
