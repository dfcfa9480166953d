#include "brigade/train/recorded_run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/version.h"
#include "brigade/files/file.h"
#include "brigade/launch/network.h"

namespace brigade {
namespace {

using nlohmann::ordered_json;

std::string memory() {
  const double bytes = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(::sysconf(_SC_PAGESIZE));
  return fmt::format("{:.1f} GB", bytes / 1e9);
}

ordered_json environment_facts(const LaunchEnvironment& environment) {
  utsname system{};
  ::uname(&system);
  return {
      {"brigade", version()},
      {"libtorch", TORCH_VERSION},
      {"host", host_name()},
      {"processor", value_in("/proc/cpuinfo", "model name")},
      {"processors", ::sysconf(_SC_NPROCESSORS_ONLN)},
      {"memory", memory()},
      {"system", value_in("/etc/os-release", "PRETTY_NAME", '=')},
      {"kernel", system.release},
      {"threads per rank", at::get_num_threads()},
      {"ranks started by", environment.launcher},
      {"restarts so far", environment.restart_count}};
}

}  // namespace

RecordedRun::RecordedRun(
    RunObserver* inner,
    const LaunchEnvironment& environment,
    std::map<std::string, std::string> origins)
    : inner_(inner == nullptr ? silent_ : *inner),
      environment_(environment),
      origins_(std::move(origins)) {}

void RecordedRun::record(
    const char* event,
    const nlohmann::ordered_json& facts) {
  try {
    events_.write(event, facts);
  } catch (const StorageError& error) {
    failure_ = error.what();
  }
}

void RecordedRun::on_start(const RunStart& start) {
  record(
      "start",
      {{"run", start.run},
       {"step", start.first_step - 1},
       {"ranks", start.config.parallel_dims().world_size()},
       {"layout", start.config.parallel_dims().product()},
       {"parameters", start.parameters},
       {"device", start.device},
       {"peak_flops", start.peak_flops},
       {"environment", environment_facts(environment_)},
       {"origins", origins_}});
  inner_.on_start(start);
}

void RecordedRun::on_step(const StepMetrics& metrics) {
  inner_.on_step(metrics);
}

void RecordedRun::on_checkpoint(const std::filesystem::path& path) {
  record("checkpoint", {{"path", path.string()}});
  inner_.on_checkpoint(path);
}

void RecordedRun::on_message(const std::string& line) {
  record("message", {{"text", line}});
  inner_.on_message(line);
}

void RecordedRun::on_progress(const RunProgress& progress) {
  inner_.on_progress(progress);
}

void RecordedRun::on_end(const RunEnd& end) {
  record(
      "end",
      {{"step", end.steps},
       {"stopped", end.end == TrainingEnd::kStopped},
       {"trained_tokens", end.trained_tokens},
       {"seconds", end.seconds}});
  inner_.on_end(end);
}

}  // namespace brigade
