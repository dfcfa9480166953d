#include "cli/begin_training.h"

#include <fmt/format.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/model_layout.h"
#include "brigade/launch/program_start.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/dry_run.h"
#include "brigade/run/run_options.h"
#include "brigade/schedule/make_schedule.h"
#include "brigade/schedule/schedule_drawing.h"
#include "cli/analyze.h"
#include "cli/config_memory.h"
#include "cli/hub.h"
#include "cli/rate_bar.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

std::string draw(const TrainConfig& config) {
  return draw_schedule(
      make_schedule(config.distributed.pp_engine, pipeline_size(config)));
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
  std::vector<int> codes = {
      128 + SIGHUP, 128 + SIGINT, 128 + SIGTERM, 128 + kTimeIsOver};
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
    const fs::path& rank_program,
    TrainConfig config) {
  SupervisorOptions options{
      .command = program_arguments(),
      .executable = rank_program,
      .threads_per_rank = wanted_threads(config),
      .unprefixed_rank = reporting_rank(config),
      .records_on_quit = true};
  for (int rank = 0; rank < launch.world_size; ++rank)
    options.rank_notes.push_back(
        config.parallel_dims().describe_coordinate(rank));
  const std::string pattern = config.logging.run_dir;
  number_run_folder(config);
  // All attempts in one folder, which the supervisor knows.
  if (config.logging.run_dir != pattern) {
    options.command.push_back("logging.run_dir=" + config.logging.run_dir);
    options.command.push_back(
        "checkpoint.save_dir=" + config.checkpoint.save_dir);
  }
  RestartOptions restarts;
  restarts.explain = [flight = RunFolder{config.logging.run_dir}.flight()](
                         const SupervisorResult& failed) {
    return failed.first_step < 0 ? "" : explain_failure(flight);
  };
  if (arguments.max_restarts > 0) {
    restarts.limits = {
        .max_restarts = arguments.max_restarts,
        .final_exit_codes = final_exit_codes()};
    restarts.prepare = [config, command = options.command](
                           const SupervisorResult& failed,
                           SupervisorOptions& next) {
      return continue_run(config, command, failed, next);
    };
  }
  supervise_self(launch, std::move(options), restarts);
}

}  // namespace

bool begin_training(
    const TrainArguments& arguments,
    const Launch& launch,
    const fs::path& rank_program,
    LoadedConfig& loaded) {
  TrainConfig& config = loaded.config;
  config.run = arguments.run;
  if (launch.speaks_to_user())
    print_ignored_keys(loaded);
  if (arguments.prints_config)
    fmt::print("{}", describe_values(loaded));
  if (arguments.prints_schedule)
    fmt::print("{}", draw(config));
  if (!arguments.trains() && !arguments.is_dry_run)
    return false;

  fetch_model_if_missing(config);
  if (launch.speaks_to_user())
    print_warnings(loaded);
  if (arguments.is_dry_run) {
    fmt::print("{}", describe_dry_run(config, scan_options()));
    fmt::print("{}", describe_head(config));
    return false;
  }
  outlive_readers();
  if (!launch.is_supervisor)
    return true;
  // What can fail without ranks fails here, once, before there are any.
  static_cast<void>(describe_dry_run(config, scan_options()));
  supervise_training(arguments, launch, rank_program, config);
  return false;
}

}  // namespace brigade::cli
