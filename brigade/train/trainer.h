// Runs a training job: what `brigade train` does on one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "brigade/comm/store.h"
#include "brigade/config/train_config.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/rank_signals.h"
#include "brigade/run/run_observer.h"
#include "brigade/train/step_requests.h"
#include "brigade/train/step_watchdog.h"

namespace brigade {

struct TrainingOptions {
  // Where measurements of this machine (the peak of MFU) and of token files
  // (their highest ids) are kept; empty: nowhere.
  std::filesystem::path cache_dir;
  // On every rank; with training.step_timeout_seconds in place of its timeout.
  StepWatchdogOptions watchdog;
  // What this rank asks for, looked up before each step and when a save begins:
  // a signal that came. Empty: nothing.
  std::function<StepRequests()> requests;
  // Unix time, in seconds, at which the job will be ended (Slurm): the run
  // saves and stops before.
  std::optional<int64_t> end_time;
  // How long the launcher waits between SIGTERM and SIGKILL; the run says when
  // a save takes longer. std::nullopt: not known.
  std::optional<KillGrace> kill_grace;
  // Where the config's values that are not defaults come from, by key: "file",
  // "command line". Goes into events.jsonl.
  std::map<std::string, std::string> origins;
  // Called on the reporting rank; null: nothing is reported beyond
  // metrics.jsonl. Must live as long as the run.
  RunObserver* observer = nullptr;
  // The store of the rendezvous; null: the one that the environment names.
  // Ranks that are threads of one process share one.
  StorePtr store;
};

// The same on all ranks.
struct TrainingResult {
  TrainingEnd end = TrainingEnd::kFinished;
  // kStopped: the signal that asked for it, whichever rank had it; 0: none did,
  // the job's time was over.
  int stop_signal = 0;
};

// Every rank of the run calls it with the same config. Throws the errors of
// base/error.h; where a file besides the checkpoints could not be written
// (metrics.jsonl on a full disk), StorageError once the last step is saved.
TrainingResult run_training(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options = {});

}  // namespace brigade
