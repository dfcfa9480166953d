// brigade status DIR [--watch SECONDS]
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "brigade/jobs/job_status.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

struct StatusArguments {
  std::string jobs = "jobs";
  int watch_seconds = 0;
};

bool may_change(const JobStatus& job) {
  return job.state == JobState::kPending || job.state == JobState::kRunning;
}

void show_status(const StatusArguments& arguments) {
  constexpr const char* kClearScreen = "\x1b[H\x1b[2J";
  while (true) {
    const std::vector<JobStatus> jobs = read_jobs(arguments.jobs);
    if (arguments.watch_seconds > 0 && ::isatty(STDOUT_FILENO) == 1)
      fmt::print("{}", kClearScreen);
    fmt::print("{}", describe_jobs(jobs));
    std::fflush(stdout);
    if (arguments.watch_seconds == 0 ||
        std::none_of(jobs.begin(), jobs.end(), may_change))
      return;
    std::this_thread::sleep_for(std::chrono::seconds(arguments.watch_seconds));
  }
}

}  // namespace

void add_status(CLI::App& app) {
  auto arguments = std::make_shared<StatusArguments>();
  CLI::App* command =
      app.add_subcommand("status", "Show how submitted jobs are doing");
  command
      ->add_option(
          "jobs", arguments->jobs, "The folder of brigade submit, or of a job")
      ->type_name("DIR")
      ->capture_default_str();
  command
      ->add_option(
          "--watch",
          arguments->watch_seconds,
          "Show it again every so many seconds, until no job is pending or "
          "running (default: once)")
      ->type_name("SECONDS")
      ->check(whole_number(1, 86400));
  command->callback([arguments] { show_status(*arguments); });
}

}  // namespace brigade::cli
