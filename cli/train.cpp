// brigade train --config FILE [--nproc N] [group.key=value ...]
#include "brigade/train/trainer.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/gpus.h"
#include "brigade/comm/world.h"
#include "brigade/config/model_layout.h"
#include "brigade/launch/immediate_exit.h"
#include "brigade/launch/rank_report.h"
#include "brigade/launch/rank_signals.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/schedule_drawing.h"
#include "brigade/topology/hosts.h"
#include "brigade/train/from_config.h"
#include "cli/analyze.h"
#include "cli/commands.h"
#include "cli/config_memory.h"
#include "cli/hub.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/standard_streams.h"
#include "cli/torch_commands.h"
#include "cli/training_output.h"
#include "cli/training_step.h"

namespace brigade::cli {

namespace {

std::string draw(const TrainConfig& config) {
  return draw_schedule(
      make_schedule(config.distributed.pp_engine, pipeline_size(config)));
}

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
       .on_step =
           [&report, &exits](int64_t step, int64_t deadline_ns) {
             exits.arm();
             training_step = step;
             report.set_step(step);
             report.set_deadline(deadline_ns);
           },
       .takes_recording_request =
           [&signals] { return signals.take_recording_request(); },
       .on_recording = [&report] { report.count_recording(); },
       .on_stall =
           [&report, self](const Stall& stall) {
             end_stalled(report, self, stall);
           },
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
  // The code of a shell for a process that a signal ended.
  throw Exit{128 + (result.stop_signal == 0 ? SIGTERM : result.stop_signal)};
}

// Token files of other programs are read once; this takes a while for large
// ones.
TokenScanOptions scan_options() {
  return {
      .cache_dir = cache_folder(process_environment()),
      .on_progress =
          [bar = std::make_shared<RateBar>()](const TokenScanProgress& scan) {
            bar->show(
                "checking the token ids of " + scan.path,
                scan.done_tokens,
                scan.total_tokens,
                RateBar::Unit::kTokens);
          }};
}

// What would end another attempt as well, and the ends that were asked for.
std::vector<int> final_exit_codes() {
  std::vector<int> codes = {128 + SIGHUP, 128 + SIGINT, 128 + SIGTERM};
  for (const ExitCode code :
       {ExitCode::kConfig, ExitCode::kData, ExitCode::kNumeric})
    codes.push_back(static_cast<int>(code));
  return codes;
}

// A run that trained continues its newest checkpoint. Before the first one it
// begins again, in the folder that is its own already; an attempt that ended
// before its first step left nothing behind.
std::string continue_run(
    const TrainConfig& config,
    const std::vector<std::string>& command,
    const SupervisorResult& failed,
    SupervisorOptions& next) {
  if (failed.first_step < 0)
    return "";
  next.command = command;
  const auto folder = checkpoint_folder(config);
  if (has_held_checkpoints(folder)) {
    next.command.emplace_back("checkpoint.load_path=auto");
    return fmt::format(
        "from the newest valid checkpoint in '{}'", folder.string());
  }
  if (!config.checkpoint.load_path.empty())
    return fmt::format("from '{}'", config.checkpoint.load_path);
  next.command.emplace_back("--overwrite");
  return "from the beginning, since no checkpoint was written yet";
}

void supervise_training(
    const TrainArguments& arguments,
    const Launch& launch,
    TrainConfig config) {
  SuperviseSelfOptions options{
      .threads_per_rank = wanted_threads(config),
      .reporting_rank = reporting_rank(config)};
  for (int rank = 0; rank < launch.world_size; ++rank)
    options.rank_notes.push_back(
        config.parallel_dims().describe_coordinate(rank));
  const std::string pattern = config.logging.run_dir;
  number_run_folder(config);
  // All attempts in one folder, which the supervisor knows.
  if (config.logging.run_dir != pattern) {
    options.more_arguments = {
        "logging.run_dir=" + config.logging.run_dir,
        "checkpoint.save_dir=" + config.checkpoint.save_dir};
  }
  options.restarts.explain = [flight =
                                  RunFolder{config.logging.run_dir}.flight()](
                                 const SupervisorResult& failed) {
    return failed.first_step < 0 ? "" : explain_failure(flight);
  };
  if (arguments.max_restarts > 0) {
    options.restarts.limits = {
        .max_restarts = arguments.max_restarts,
        .final_exit_codes = final_exit_codes()};
    auto command = program_arguments();
    command.insert(
        command.end(),
        options.more_arguments.begin(),
        options.more_arguments.end());
    options.restarts.prepare = [config, command](
                                   const SupervisorResult& failed,
                                   SupervisorOptions& next) {
      return continue_run(config, command, failed, next);
    };
  }
  supervise_self(launch, options);
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
  const bool trains = !arguments.prints_config && !arguments.is_dry_run &&
                      !arguments.prints_schedule;
  LoadedConfig loaded = load_config_of_rank(arguments, launch, trains);
  TrainConfig& config = loaded.config;
  config.run = arguments.run;

  // Before anything is printed: it may start this process once more.
  if (trains && !launch.is_supervisor)
    share_out_threads(launch.environment, wanted_threads(config));
  if (launch.speaks_to_user())
    print_ignored_keys(loaded);
  if (arguments.prints_config)
    fmt::print("{}", describe_values(loaded));
  if (arguments.prints_schedule)
    fmt::print("{}", draw(config));
  if (!trains && !arguments.is_dry_run)
    return;

  fetch_model_if_missing(config);
  if (launch.speaks_to_user())
    print_warnings(loaded);
  if (arguments.is_dry_run) {
    fmt::print("{}", describe_dry_run(config, scan_options()));
    fmt::print("{}", describe_head(config));
    return;
  }
  if (launch.is_supervisor) {
    // What can fail without ranks fails here, once, before there are any.
    static_cast<void>(describe_dry_run(config, scan_options()));
    supervise_training(arguments, launch, config);
  } else {
    train_as_rank(loaded, launch.environment);
  }
}

}  // namespace brigade::cli
