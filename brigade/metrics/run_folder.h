// The folder of a run: metrics.jsonl, config.json, checkpoints,
// traces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "brigade/config/train_config.h"
#include "brigade/files/folder_lock.h"

namespace brigade {

struct RunFolder {
  std::filesystem::path path;
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path config() const { return path / "config.json"; }
  // What happened besides steps (metrics/run_events.h).
  std::filesystem::path events() const { return path / "events.jsonl"; }
  // What logging.trace_steps asks for.
  std::filesystem::path trace(int rank) const {
    return path / ("trace-rank" + std::to_string(rank) + ".json");
  }
  // What the ranks did before a failure, of the last start of the run and of
  // the one before.
  std::filesystem::path flight() const { return path / "flight"; }
  std::filesystem::path previous_flight() const {
    return path / "flight.previous";
  }
};

// logging.run_dir and checkpoint.save_dir may hold "{n}": the lowest number
// from 1 on whose run_dir does not exist yet, so that every run gets a folder
// of its own; with checkpoint.load_path=auto the highest one whose run has
// checkpoints, where there is one. Replaces it in both; does nothing without
// one.
void number_run_folder(TrainConfig& config);

// Throws ConfigError when the folder holds a run that would be overwritten, or
// StorageError when it cannot be written to. Changes nothing.
void check_run_folder(const TrainConfig& config);

// Throws StorageError when checkpoint.save_dir cannot be written to, or its
// disk has less than `checkpoint_bytes` free: one checkpoint would not fit.
void check_checkpoint_folder(
    const TrainConfig& config,
    uint64_t checkpoint_bytes);

// Throws StorageError when logging.prometheus_file cannot be written to its
// folder. The run folder passes, which the run makes. Changes nothing.
void check_prometheus_file(const LoggingConfig& logging);

// Makes the folder and takes it for this process (files/folder_lock.h): two
// runs would write into each other's files. Throws ConfigError that names who
// holds it.
std::unique_ptr<FolderLock> lock_run_folder(const TrainConfig& config);

// The same for the folder of checkpoints, which runs of several run folders
// may name.
std::unique_ptr<FolderLock> lock_checkpoint_folder(const TrainConfig& config);

// Makes the folder and writes config.json. With run.overwrite an earlier run's
// record, traces and checkpoints are removed first; a run that continues a
// checkpoint in its own folder goes on writing there.
void open_run_folder(const TrainConfig& config);

// Where events.jsonl says that the last start there was of another run than
// that of this id: moves metrics.jsonl, events.jsonl, metrics.csv and
// TensorBoard's files into a new folder in it, whose path it returns. Does
// nothing and returns "" otherwise. Throws StorageError.
std::filesystem::path set_aside_other_run(
    const RunFolder& folder,
    const std::string& run);

// Where checkpoints go: checkpoint.save_dir, or RUN/checkpoints.
std::filesystem::path checkpoint_folder(const TrainConfig& config);

}  // namespace brigade
