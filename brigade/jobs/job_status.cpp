#include "brigade/jobs/job_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "brigade/base/error.h"
#include "brigade/base/shell_word.h"
#include "brigade/files/file.h"
#include "brigade/jobs/batch_script.h"
#include "brigade/json/nearest.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The status file of a job whose number is that of the latest submission.
constexpr const char* kWaiting = "pending\n";

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string text_of(const fs::path& path) {
  return fs::is_regular_file(path) ? read_text_file(path) : std::string();
}

// What the latest start of the job printed.
std::string_view latest_start(std::string_view output) {
  const size_t begin = output.rfind(kStartMark);
  return begin == std::string_view::npos ? output : output.substr(begin);
}

// The first error that is not about a lost peer, since those are consequences;
// else the first of all.
std::string first_error(std::string_view output) {
  std::string first;
  std::istringstream lines{std::string(output)};
  for (std::string line; std::getline(lines, line);) {
    const bool is_ours = holds(line, "error: ") && !line.starts_with("srun");
    if (!is_ours)
      continue;
    if (!holds(line, "CommError"))
      return line;
    if (first.empty())
      first = line;
  }
  return first;
}

// Slurm's words, and our own for an allocation that failed.
bool tells_out_of_memory(std::string_view output) {
  return holds(output, "oom-kill") || holds(output, "oom_kill") ||
         holds(output, "Out Of Memory") || holds(output, "out of memory");
}

// Slurm's words for a job that it stopped and put back into the queue.
bool tells_requeue(std::string_view output) {
  return holds(output, "DUE TO NODE FAILURE") ||
         holds(output, "DUE TO PREEMPTION") ||
         holds(output, "DUE TO JOB REQUEUE");
}

std::optional<JobProgress> read_progress(const fs::path& metrics) {
  const std::string text = text_of(metrics);
  // The line behind the last break is still being written.
  const size_t end = text.rfind('\n');
  if (end == std::string::npos || end == 0)
    return std::nullopt;
  const size_t line_break = text.rfind('\n', end - 1);
  const size_t begin = line_break == std::string::npos ? 0 : line_break + 1;
  const std::string line = text.substr(begin, end - begin);
  // A damaged line hides no other job.
  const auto values = parse_json_or_nothing(line);
  if (!values || !values->is_object())
    return std::nullopt;
  const auto number = [&](const char* key) {
    const auto found = values->find(key);
    return found != values->end() && found->is_number()
               ? found->get<double>()
               : std::numeric_limits<double>::quiet_NaN();
  };
  if (!values->contains("step") || !values->at("step").is_number_integer())
    return std::nullopt;
  return JobProgress{
      .step = values->at("step").get<int64_t>(),
      .loss = number("loss"),
      .tokens_per_second = number("tokens_per_second")};
}

// The status file: "running 17", "failed 2 17".
void read_state(
    const fs::path& folder,
    const std::string& task,
    JobStatus& status) {
  const fs::path path = folder / (kJobStatus + task);
  std::istringstream words(text_of(path));
  std::string word;
  words >> word;
  status.job_id = read_submitted_id(folder);
  // As scancel takes it, which would end the whole array otherwise.
  if (!status.job_id.empty() && !status.task.empty())
    status.job_id += "_" + status.task;
  if (word.empty())
    return;
  std::string code;
  if (word == "failed")
    words >> code;
  words >> status.job_id;
  const std::string output = text_of(folder / (kJobOutput + task));
  const std::string_view latest = latest_start(output);
  if (word == "completed") {
    status.state = JobState::kCompleted;
  } else if (word == "running" && holds(latest, "DUE TO TIME LIMIT")) {
    status.state = JobState::kTimeout;
  } else if (word == "running" && !holds(latest, "CANCELLED AT")) {
    status.state = JobState::kRunning;
  } else if (word == "running" && tells_requeue(latest)) {
    status.state = JobState::kPending;
  } else if (word == "running" || word == "failed") {
    const bool is_timeout = holds(latest, "DUE TO TIME LIMIT");
    status.state = tells_out_of_memory(latest) ? JobState::kOom
                   : is_timeout                ? JobState::kTimeout
                                               : JobState::kFail;
    status.cause = first_error(latest);
    if (status.cause.empty())
      status.cause = code.empty() ? "cancelled" : "exit code " + code;
  } else if (word != "pending") {
    throw DataError(fmt::format(
        "[status] '{}' begins with '{}'; expected pending, running, completed "
        "or failed",
        path.string(),
        word));
  }
}

}  // namespace

JobState parse_job_state(const std::string& text) {
  if (const auto state = find_choice<JobState>(text))
    return *state;
  const std::vector<std::string> names = choice_texts<JobState>();
  throw ConfigError(fmt::format(
      "[status] '{}' is no state of a job; the nearest is '{}' (all: {})",
      text,
      names[nearest_name(text, names)],
      fmt::join(names, ", ")));
}

std::vector<JobStatus> read_job(const fs::path& folder) {
  std::vector<std::string> tasks;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::string prefix = std::string(kJobStatus) + ".";
    if (name.starts_with(prefix) && !name.ends_with(".new"))
      tasks.push_back(name.substr(prefix.size() - 1));
  }
  std::sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  if (tasks.empty())
    tasks.emplace_back();
  std::vector<JobStatus> jobs;
  for (const std::string& task : tasks) {
    JobStatus status{
        .name = folder.filename().string() + task,
        .task = task.empty() ? "" : task.substr(1)};
    read_state(folder, task, status);
    status.progress =
        read_progress(folder / (kJobRun + task) / "metrics.jsonl");
    jobs.push_back(std::move(status));
  }
  return jobs;
}

std::vector<JobStatus> read_jobs(const fs::path& folder) {
  if (fs::is_regular_file(folder / kBatchScript))
    return read_job(folder);
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code unknown;  // of a link that leads nowhere
    if (fs::is_regular_file(entry.path() / kBatchScript, unknown))
      folders.push_back(entry.path());
  }
  if (folders.empty())
    throw ConfigError(fmt::format(
        "[status] '{}' holds no jobs; brigade submit --jobs {} makes them",
        folder.string(),
        shell_path(folder.string())));
  std::sort(folders.begin(), folders.end());
  std::vector<JobStatus> jobs;
  for (const fs::path& each : folders) {
    const auto of_job = read_job(each);
    jobs.insert(jobs.end(), of_job.begin(), of_job.end());
  }
  return jobs;
}

std::string read_submitted_id(const fs::path& folder) {
  std::istringstream words(text_of(folder / kSubmittedId));
  std::string id;
  words >> id;
  return id;
}

void set_pending(const fs::path& folder, const std::vector<JobStatus>& jobs) {
  const auto file_of = [&](const JobStatus& job) {
    return folder / (kJobStatus + (job.task.empty() ? "" : "." + job.task));
  };
  // Those that wait already keep the number that they were submitted with.
  for (const JobStatus& job : read_job(folder)) {
    if (text_of(file_of(job)) == kWaiting)
      write_text_file(file_of(job), "pending " + job.job_id + "\n");
  }
  for (const JobStatus& job : jobs)
    write_text_file(file_of(job), kWaiting);
}

std::string describe_jobs(const std::vector<JobStatus>& jobs) {
  size_t width = 4;
  std::map<JobState, int> counts;
  for (const JobStatus& job : jobs) {
    width = std::max(width, job.name.size());
    ++counts[job.state];
  }
  std::string text = fmt::format(
      "{:<{}}  {:<9}  {:>8}  {:>8}  {:>8}  {:>10}\n",
      "job",
      width,
      "state",
      "id",
      "step",
      "loss",
      "tokens/s");
  for (const JobStatus& job : jobs) {
    std::string line = fmt::format(
        "{:<{}}  {:<9}  {:>8}",
        job.name,
        width,
        to_string(job.state),
        job.job_id);
    if (job.progress)
      line += fmt::format(
          "  {:>8}  {:>8.4f}  {:>10.0f}",
          job.progress->step,
          job.progress->loss,
          job.progress->tokens_per_second);
    if (!job.cause.empty())
      line += "  " + job.cause;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  std::vector<std::string> totals;
  for (const auto& [state, count] : counts)
    totals.push_back(fmt::format("{} {}", count, to_string(state)));
  return text + fmt::format("{}\n", fmt::join(totals, ", "));
}

}  // namespace brigade
