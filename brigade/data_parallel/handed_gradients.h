// The gradients that a step has handed over, until an optimizer has used them.
// Notes whether one has, and whether that one read them where they lie and
// cleared them.
//
// Used by one thread at a time: the trainer's, or backward's if a step begins,
// goes on or ends in it.
#pragma once

#include <cstdint>

#include "brigade/data_parallel/grad_sync_options.h"
#include "brigade/data_parallel/step_progress.h"
#include "brigade/data_parallel/write_observer.h"
#include "brigade/param/param_memory.h"

namespace brigade {

class HandedGradients {
 public:
  // All arguments outlive this object.
  HandedGradients(
      const GradSyncOptions& options,
      const ParamMemory& memory,
      StepProgress& progress)
      : options_(&options), memory_(&memory), progress_(&progress) {}

  // The gradients are handed over. An optimizer is to scale them with
  // `grad_scale` (GradSync::grad_scale()).
  void begin(double grad_scale);
  // The gradients are a part of the next step's sum, or dropped.
  void forget() { writes_.end(); }

  // An optimizer is about to read them; see GradSync::check_before_step().
  void begin_optimizer_step();
  // An optimizer has stepped `numel` elements that this rank owns, and has
  // cleared or kept their gradients.
  void note_stepped(int64_t numel) { stepped_numel_ += numel; }
  // All parameters were stepped in backward, and the gradients are gone.
  void note_all_stepped();

  // Whether an optimizer has stepped since begin().
  bool were_used() const;
  // Whether they were used, or .grad() was cleared or written since. False if
  // all were stepped in backward.
  bool were_touched() const;
  // With kMainGrad: whether they are still those of begin().
  bool are_uncleared() const;
  // Called once they were used; the next gradients begin from zero. Throws
  // UsageError if the optimizer does not know where they are, or has kept
  // them, so that the next ones would be added. Returns whether some were not
  // stepped and are still to be cleared: those of another optimizer, whose turn
  // it was not.
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
  // Watches writes from begin() to the first step.
  WriteObserver writes_;
};

}  // namespace brigade
