// The batch script of a training job, as `brigade submit` writes it.
//
// PURE: options in, text out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

// One job. Texts that are empty are left to the cluster's defaults.
struct SlurmJob {
  std::string name;
  std::filesystem::path folder;   // absolute: script, config, output, status
  std::filesystem::path program;  // absolute: this program
  // Where relative paths of the config begin; absolute.
  std::filesystem::path working_folder;
  int nodes = 1;
  int ranks_per_node = 1;
  std::optional<int> gpus_per_node;
  std::optional<int> cpus_per_rank;
  std::string time;  // "HH:MM:SS", or another of sbatch's forms
  std::string partition;
  std::string account;
  std::string qos;
  std::string array;       // "0-3"
  std::string dependency;  // "afterok:123"
  std::string load_path;   // checkpoint.load_path of the config
  // group.key=value. In an array, %a is the task's number and %% is %.
  std::vector<std::string> overrides;
};

// Names, within a job's folder. An array's tasks have ".N" behind them.
inline constexpr const char* kBatchScript = "job.sbatch";
inline constexpr const char* kJobConfig = "config.json";
inline constexpr const char* kJobStatus = "status";
inline constexpr const char* kJobOutput = "output";
inline constexpr const char* kJobRun = "run";
inline constexpr const char* kSubmittedId = "submitted";  // Slurm's number
// How a start of the job begins in its output, which restarts append to.
inline constexpr const char* kStartMark = "== brigade job ";

// The script. It starts the ranks with an explicit srun -n, continues from the
// job's newest checkpoint (before there is one, from checkpoint.load_path), has
// the ranks save before the time limit, puts the job back into the queue then,
// and keeps the status file.
std::string slurm_batch_script(const SlurmJob& job);

// The same with `text` in place of the built-in one: {DIRECTIVES} and {COMMAND}
// are replaced by the #SBATCH lines and the srun command, {FOLDER} by the job's
// folder. Throws ConfigError where {DIRECTIVES} or {COMMAND} is missing.
std::string slurm_batch_script(const SlurmJob& job, std::string text);

}  // namespace brigade
