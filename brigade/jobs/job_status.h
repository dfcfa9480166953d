// How the jobs of a folder are doing, by the files that they write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/options/choice.h"

namespace brigade {

enum class JobState {
  kPending,  // submitted, or queued again: at its time limit, preempted
  kRunning,
  kCompleted,  // trained to its last step
  kOom,        // out of memory, of the host or of its share
  kTimeout,    // ended by the time limit without having saved and queued again
  kFail,
};
template <>
inline constexpr std::array kChoices<JobState>{
    Choice{JobState::kPending, "pending"},
    Choice{JobState::kRunning, "running"},
    Choice{JobState::kCompleted, "completed"},
    Choice{JobState::kOom, "oom"},
    Choice{JobState::kTimeout, "timeout"},
    Choice{JobState::kFail, "fail"}};
// Throws ConfigError naming the nearest word.
JobState parse_job_state(const std::string& text);

// The latest line of a run's metrics.jsonl.
struct JobProgress {
  int64_t step = 0;
  double loss = 0;  // NaN: null there
  double tokens_per_second = 0;
};

// One job, or one task of an array.
struct JobStatus {
  std::string name;
  std::string task;  // its number in an array; empty: it is no task
  JobState state = JobState::kPending;
  std::string job_id;  // Slurm's; of a task that waits "77_3"
  std::optional<JobProgress> progress;
  // kFail and kOom: the first error that the output tells.
  std::string cause;
};

// The status of the job in `folder`, which brigade submit made; one per task of
// an array that has started. Throws DataError for a status file that is none.
std::vector<JobStatus> read_job(const std::filesystem::path& folder);

// The same for all jobs in `folder`, by name; or for the job that it is itself.
// Throws ConfigError when it is neither.
std::vector<JobStatus> read_jobs(const std::filesystem::path& folder);

// Slurm's number of the job that was submitted last; empty: none was.
std::string read_submitted_id(const std::filesystem::path& folder);

// Before these jobs of a folder are submitted: they are pending, and others
// that are keep their number. Throws StorageError, and as read_job() does.
void set_pending(
    const std::filesystem::path& folder,
    const std::vector<JobStatus>& jobs);

// A table for people: one line per job, then a count per state.
std::string describe_jobs(const std::vector<JobStatus>& jobs);

}  // namespace brigade
