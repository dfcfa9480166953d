// What a run leaves besides its checkpoints: metrics.jsonl, events.jsonl,
// TensorBoard's events, the file for Prometheus, traces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "brigade/comm/communicator.h"
#include "brigade/config/train_config.h"
#include "brigade/launch/environment.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/metrics/loss_spikes.h"
#include "brigade/metrics/metrics.h"
#include "brigade/metrics/tfevents.h"
#include "brigade/metrics/trace.h"
#include "brigade/run/run_observer.h"
#include "brigade/train/recorded_run.h"

namespace brigade {

// On every rank; only the reporting one writes more than traces. A file that
// cannot be written ends nothing by itself: the run goes on to where all ranks
// save and stop.
class TrainingRecord {
 public:
  // `config` must outlive it; its run_dir is read from open() on. `inner` may
  // be null. `origins`: where the config's values that are not defaults come
  // from, by key.
  TrainingRecord(
      const TrainConfig& config,
      const LaunchEnvironment& environment,
      RunObserver* inner,
      std::map<std::string, std::string> origins);

  // Where a rank's news go: to the inner observer and the events on the
  // reporting rank, nowhere on others.
  RunObserver& observer() { return reports_ ? recorded_ : silent_; }
  // Whether this rank is the one that reports.
  bool reports() const { return reports_; }

  // On the reporting rank, once the run folder is there: its record up to step
  // `step` stays. `run`: the run's id; `checkpoint`: what it continues. Throws
  // StorageError, DataError.
  void open(
      const std::string& run,
      int64_t step,
      const std::optional<std::filesystem::path>& checkpoint);

  // Null: step `step` is not traced.
  Trace* trace_of(int64_t step) { return is_traced(step) ? &trace_ : nullptr; }
  // After each step: what was seen survives a run that fails later.
  void keep_trace(int64_t step);
  // The file of this rank's trace, if any was written.
  std::optional<std::filesystem::path> trace_path() const;

  // A step's line in all that is kept, and what is remarkable about it.
  void add_step(const StepMetrics& metrics, int64_t last_step);
  // The run ends with an exception of this text.
  void on_failure(const std::string& text) { recorded_.on_failure(text); }

  // Why something of it is missing on this rank; "": nothing is.
  const std::string& unwritten() const {
    return unwritten_.empty() ? recorded_.failure() : unwritten_;
  }
  // Collective. Throws StorageError where a rank could not write something;
  // `saved_step` is the last checkpoint's.
  void throw_if_unwritten(Communicator& world, int64_t saved_step) const;

 private:
  bool is_traced(int64_t step) const;
  void keep(const std::function<void()>& write);
  void write_trace() const;
  void recall_losses(int64_t step, const std::filesystem::path& checkpoint);

  const TrainConfig& config_;
  const int rank_;
  const bool reports_;
  RecordedRun recorded_;
  RunObserver silent_;
  std::unique_ptr<MetricsFile> metrics_;  // null: this rank has none
  std::unique_ptr<TfEventsFile> events_;  // null: not asked for
  LossSpikes spikes_;
  IdleExperts idle_experts_;
  Trace trace_;
  std::string unwritten_;
};

}  // namespace brigade
