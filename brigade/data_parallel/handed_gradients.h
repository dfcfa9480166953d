// The gradients that a step has handed over, until an optimizer has used them:
// whether one has, and whether it knew where they are and cleared them.
//
// One thread at a time: the trainer's, or backward's where a step begins, goes
// on or ends in it.
#pragma once

#include <cstdint>

#include "brigade/data_parallel/grad_sync_options.h"
#include "brigade/data_parallel/step_progress.h"
#include "brigade/data_parallel/write_watch.h"
#include "brigade/param/param_memory.h"

namespace brigade {

class HandedGradients {
 public:
  // What it is given outlives it.
  HandedGradients(
      const GradSyncOptions& options,
      const ParamMemory& memory,
      StepProgress& progress)
      : options_(&options), memory_(&memory), progress_(&progress) {}

  // They are handed over. `grad_scale`: what an optimizer is to scale them with
  // (GradSync::grad_scale()).
  void begin(double grad_scale);
  // They are a part of the next step's sum, or dropped.
  void forget() { writes_.end(); }

  // An optimizer is about to read them; see GradSync::check_before_step().
  void begin_optimizer_step();
  // It has stepped so many elements that this rank owns, and cleared their
  // gradients or keeps them.
  void note_stepped(int64_t numel) { stepped_numel_ += numel; }
  // All were stepped in backward, and are gone.
  void note_all_stepped();

  // Whether an optimizer has stepped since begin().
  bool were_used() const;
  // The same as were_used(), or whether .grad() was cleared or written since.
  // Never where all were stepped in backward.
  bool were_touched() const;
  // kMainGrad: whether they are still those of begin().
  bool are_uncleared() const;
  // They were used, and the next ones begin from zero. ConfigError: what used
  // them does not know where they are, or has kept them, so that the next ones
  // would be added. Returns whether some were not stepped: another optimizer's,
  // whose turn it was not, are still to be cleared.
  [[nodiscard]] bool end_use() const;

 private:
  bool are_main_grads() const {
    return options_->handover == GradHandover::kMainGrad;
  }
  void note_used();
  int64_t owned_numel() const;
  void throw_if_stepped_elsewhere() const;
  void throw_if_kept() const;
  int64_t version_of_weights() const;
  int64_t version_of_gradients() const;
  int64_t version_of_shown() const;

  const GradSyncOptions* options_;
  const ParamMemory* memory_;
  StepProgress* progress_;
  int64_t weights_version_ = 0;    // at begin()
  int64_t gradients_version_ = 0;  // the same; -1: there are none
  int64_t shown_version_ = 0;      // the same, of .grad()
  int64_t stepped_numel_ = 0;      // since begin()
  // Since begin(), to the first step.
  WriteWatch writes_;
};

}  // namespace brigade
