// When and how a run saves: by steps, by time, on request, and at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "brigade/checkpoint/background_save.h"
#include "brigade/launch/rank_signals.h"
#include "brigade/metrics/clock.h"
#include "brigade/run/run_observer.h"
#include "brigade/train/run_checkpoint.h"

namespace brigade {

class RunSaver {
 public:
  // All but `data` must outlive it.
  RunSaver(
      const TrainConfig& config,
      const ProcessMesh& mesh,
      TrainStep& step,
      const TrainingData& data,
      RunObserver& observer);

  // The run's id, of the checkpoint that is continued. Collective.
  void begin_run(const std::string& continued_run, int64_t saved_step);

  const std::string& run() const { return run_; }

  // By checkpoint.save_frequency.
  bool is_due(int64_t step) const;
  // By checkpoint.save_seconds, on rank 0, which asks for all.
  bool asks_for_save() const;

  // Until poll() or wait() sees its end. Ranks may differ for a moment, so that
  // nothing collective may depend on it.
  bool is_saving() const { return !background_.is_idle(); }
  // Whether this rank alone knows that the save under way has failed: it asks
  // for another, so that all ranks meet in wait(). At most once in a minute,
  // since that one may fail too.
  bool needs_another_save() {
    return steady_now_ns() - last_start_ns_ >= 60'000'000'000 &&
           background_.has_untold_failure();
  }
  // The step of the save that was started last, or of the checkpoint that is
  // continued; -1: none. The same on all ranks.
  int64_t started_step() const { return started_step_; }

  // Collective, between two steps. Waits for the save before this one. With
  // checkpoint.async it returns once the tensors are copied, otherwise once the
  // checkpoint is there. A save that fails is reported; the run goes on.
  void save(const RunPosition& position);
  // Collective, after the last step: returns once all is on disk. Nothing to do
  // where this step is saved already. Throws StorageError when it fails.
  void save_last(const RunPosition& position);
  // Reports a save that has ended.
  void poll();
  // Collective: returns once no save is under way.
  void wait();

  // Says once that a save takes longer than mpirun lets it after SIGTERM.
  void set_kill_grace(KillGrace grace) { kill_grace_ = grace; }

  // The longest save so far, seconds.
  double longest_seconds() const { return longest_seconds_; }

 private:
  enum class Copy { kNo, kYes };
  void start(const RunPosition& position, Copy copy);
  void take_note(const SaveOutcome& outcome);

  const TrainConfig& config_;
  const ProcessMesh& mesh_;
  TrainStep& step_;
  const nlohmann::json data_;
  RunObserver& observer_;
  std::string run_;
  int64_t saves_ = 0;          // started
  int64_t started_step_ = -1;  // of the save started last
  int64_t saved_step_ = -1;    // of the checkpoint written last
  std::string last_failure_;   // of the save that ended last; "": none
  int64_t last_start_ns_ = 0;
  double longest_seconds_ = 0;
  std::optional<KillGrace> kill_grace_;  // none: not known, or said
  BackgroundSave background_;
};

}  // namespace brigade
