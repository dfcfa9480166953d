// brigade train --config FILE [--nproc N] [group.key=value ...]
#include "brigade/train/trainer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/gpus.h"
#include "brigade/comm/world.h"
#include "brigade/flight/recording.h"
#include "brigade/launch/immediate_exit.h"
#include "brigade/launch/rank_report.h"
#include "brigade/launch/rank_signals.h"
#include "brigade/launch/supervisor.h"
#include "brigade/run/run_options.h"
#include "brigade/topology/hosts.h"
#include "cli/begin_training.h"
#include "cli/commands.h"
#include "cli/hub.h"
#include "cli/options.h"
#include "cli/standard_streams.h"
#include "cli/torch_commands.h"
#include "cli/training_output.h"
#include "cli/training_step.h"

namespace brigade::cli {

namespace {

// Nothing of this process can be trusted to come to an end.
[[noreturn]] void
end_stalled(RankReport& report, const std::string& self, const Stall& stall) {
  // Who waited for a peer is not the cause, as with a CommError.
  const ExitCode code =
      stall.waits_for_peers ? ExitCode::kComm : ExitCode::kStalled;
  const std::string message = fmt::format(
      "{}: {}",
      stall.waits_for_peers ? "CommError" : "StallError",
      stall.reason);
  if (report.is_read_by_supervisor())
    report.set_failure(message);
  else
    note("error: {}: {}\n", self, message);
  ::_exit(static_cast<int>(code));
}

std::map<std::string, std::string> origins_of(const LoadedConfig& loaded) {
  std::map<std::string, std::string> origins;
  for (const ResolvedValue& value : loaded.values) {
    if (value.origin != ValueOrigin::kDefault)
      origins[value.key] = to_string(value.origin);
  }
  return origins;
}

void train_as_rank(
    const LoadedConfig& loaded,
    const LaunchEnvironment& environment) {
  const TrainConfig& config = loaded.config;
  end_with_launcher(environment);
  RankReport report(environment.report_file);
  TrainingOutput output(
      visible_on_stderr(environment),
      allows_colour(
          process_environment()("NO_COLOR"), process_environment()("TERM"))
          ? TrainingOutput::Colour::kYes
          : TrainingOutput::Colour::kNo);
  output.set_columns(
      std::atoll(process_environment()("COLUMNS").value_or("0").c_str()));
  RankSignals signals;
  ImmediateExit exits;
  report.set_handles_quit();
  const std::string self = rank_names(config.parallel_dims())
                               .at(static_cast<size_t>(environment.rank));
  const TrainingResult result = run_training(
      config,
      environment,
      {.cache_dir = cache_folder(process_environment()),
       .watchdog = {
           .on_step =
               [&report, &exits](int64_t step, int64_t deadline_ns) {
                 exits.arm();
                 training_step = step;
                 report.set_step(step);
                 report.set_deadline(deadline_ns);
               },
           .takes_recording_request = [&]() -> std::optional<FlightCause> {
             if (!signals.take_recording_request())
               return std::nullopt;
             return report.has_run_failed() ? FlightCause::kFailure
                                            : FlightCause::kRequest;
           },
           .on_recording = [&report] { report.count_recording(); },
           .on_stall =
               [&report, self](const Stall& stall) {
                 end_stalled(report, self, stall);
               }},
       .requests =
           [&signals] {
             return StepRequests{
                 .save = signals.take_save_request(),
                 .stop = signals.stop_signal() != 0,
                 .stop_signal = signals.stop_signal()};
           },
       .end_time = job_end_time(process_environment()),
       .kill_grace = kill_grace(environment, process_environment()),
       .origins = origins_of(loaded),
       .observer = &output,
       .store = nullptr});
  if (result.end == TrainingEnd::kFinished)
    return;
  if (result.stop_signal == 0 && environment.rank == reporting_rank(config))
    write_log(
        "stopped because the job's time ends at {:%F %T} UTC\n",
        fmt::gmtime(job_end_time(process_environment()).value_or(0)));
  // The code of a shell for a process that a signal ended.
  throw Exit{
      128 + (result.stop_signal == 0 ? kTimeIsOver : result.stop_signal)};
}

// What stops this rank, perhaps on a host of its own, ends the others too.
LoadedConfig load_config_of_rank(
    const TrainArguments& arguments,
    const Launch& launch,
    bool trains) {
  try {
    LoadedConfig loaded =
        load_config(arguments.config, launch.world_size, find_gpus());
    if (trains && loaded.config.trains_on_gpus()) {
      LaunchEnvironment rank = launch.environment;
      if (launch.is_supervisor) {  // the last of those to be started here
        rank.local_world_size = launch.world_size;
        rank.rank = rank.local_rank = launch.world_size - 1;
      }
      check_gpus(find_gpus(), rank);
    }
    return loaded;
  } catch (const Error& error) {
    if (trains)
      announce_failed_start(launch.environment, error);
    throw;
  }
}

}  // namespace

void train(const TrainArguments& arguments) {
  if (print_config_help(arguments.help_config))
    return;
  const Launch launch =
      read_launch(arguments.config.nproc, arguments.max_restarts);
  const bool trains = arguments.trains();
  LoadedConfig loaded = load_config_of_rank(arguments, launch, trains);
  // Before anything is printed: it may start this process once more.
  if (trains && !launch.is_supervisor)
    share_out_threads(launch.environment, wanted_threads(loaded.config));
  if (begin_training(arguments, launch, "/proc/self/exe", loaded))
    train_as_rank(loaded, launch.environment);
}

}  // namespace brigade::cli
