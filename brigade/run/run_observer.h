// What a run reports while it goes on. The trainer calls an observer, and
// writes the run folder's files itself: a program shows what it likes, a test
// sees what it needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "brigade/config/train_config.h"
#include "brigade/metrics/metrics.h"

namespace brigade {

// Work before the first step that takes long: hashing the files of a checkpoint
// that is continued, looking for the highest token id of a dataset.
struct RunProgress {
  std::string what;  // "verifying runs/run/checkpoints/100"
  uint64_t done = 0;
  uint64_t total = 0;
  enum class Unit { kBytes, kTokens };
  Unit unit = Unit::kBytes;
};

// Before the first step.
struct RunStart {
  const TrainConfig& config;  // with the run folder's final name
  std::string run;            // its id, that of a checkpoint it continues
  int rank = 0;               // the global rank that reports
  int64_t parameters = 0;     // of the whole model, a tied head once
  int64_t tokens_per_step = 0;
  std::string device = "CPU";  // or "GPU": what a rank computes on
  double peak_flops = 0;       // products of the model's dtype, per rank
  int64_t first_step = 1;      // above 1: the run continues a checkpoint
  int64_t last_step = 0;       // that the run ends with
};

enum class TrainingEnd {
  kFinished,
  kStopped,  // a rank was asked to, or the job's time was over; all is saved
};

// After the last step.
struct RunEnd {
  TrainingEnd end = TrainingEnd::kFinished;
  int64_t steps = 0;           // that the run is at, those before it included
  int64_t trained_tokens = 0;  // by this start of the run; 0: none were left
  double seconds = 0;          // that training them took
  int replicas = 1;            // ranks that a bucket was reduced over
  std::filesystem::path checkpoint;  // the newest
  std::optional<std::filesystem::path>
      trace;  // this rank's, if any was written
};

// Called on the reporting rank alone, on the thread that trains. What an
// observer throws ends the run.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void on_start(const RunStart&) {}
  // After each step, in order; metrics.jsonl holds it by then.
  virtual void on_step(const StepMetrics&) {}
  // A checkpoint is complete.
  virtual void on_checkpoint(const std::filesystem::path&) {}
  // What a person should know: a checkpoint that was rejected, a save that
  // failed, a step that was skipped. May come before on_start().
  virtual void on_message(const std::string&) {}
  // Many times per second, before on_start().
  virtual void on_progress(const RunProgress&) {}
  virtual void on_end(const RunEnd&) {}
};

}  // namespace brigade
