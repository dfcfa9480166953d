// brigade tune-buckets --config FILE --nproc N [group.key=value ...]
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "brigade/base/error.h"
#include "brigade/comm/gpus.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/train/bucket_tuner.h"
#include "cli/hub.h"
#include "cli/options.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

// Where the tuned config goes: run.json becomes run.tuned.json unless asked
// otherwise. Throws before anything is measured when it cannot go there.
fs::path output_path(const TuneBucketsArguments& arguments) {
  fs::path path = arguments.config.path;
  if (!arguments.out.empty()) {
    path = arguments.out;
  } else if (!arguments.writes_in_place) {
    path.replace_extension(".tuned" + path.extension().string());
    if (fs::exists(path)) {
      throw ConfigError(fmt::format(
          "[tune-buckets] '{}' is there already; remove it, name another file "
          "with --out, or change the config itself with --write",
          path.string()));
    }
  }
  check_writable(path);
  return path;
}

void write_and_report(
    const TuneBucketsArguments& arguments,
    const fs::path& path,
    const BucketTuning& tuning) {
  const TunedCapacity& best = tuning.capacities[tuning.fastest];
  const std::string text = with_bucket_capacity(
      read_text_file(arguments.config.path), best.capacity_bytes);
  write_text_file(path, text);
  fmt::print("{}\n", tuning.table());
  for (const TunedCapacity& capacity : tuning.capacities) {
    if (!capacity.is_configured)
      continue;
    if (best.is_configured)
      fmt::print("the config's own bucket_cap_mb is the fastest of these\n");
    else
      fmt::print(
          "a step takes {:.1f} % less time than with the config's own\n",
          100 * (1 - *best.step_ms / *capacity.step_ms));
  }
  fmt::print(
      "wrote {}: {} with distributed.bucket_cap_mb = {}\n",
      path.string(),
      path == fs::path(arguments.config.path) ? "the config"
                                              : arguments.config.path,
      static_cast<double>(best.capacity_bytes) / static_cast<double>(MiB));
}

}  // namespace

void tune_buckets(const TuneBucketsArguments& arguments) {
  const Launch launch = read_launch(arguments.config.nproc);
  LoadedConfig loaded =
      load_config(arguments.config, launch.world_size, find_gpus());
  TrainConfig& config = loaded.config;
  if (!launch.is_supervisor)
    share_out_threads(launch.environment, wanted_threads(config));
  if (launch.speaks_to_user())
    print_ignored_keys(loaded);
  fetch_model_if_missing(config);
  if (launch.speaks_to_user())
    print_warnings(loaded);
  const bool is_writer = !launch.is_supervisor && launch.environment.rank == 0;
  const fs::path path =
      launch.is_supervisor || is_writer ? output_path(arguments) : fs::path();
  if (launch.is_supervisor) {
    check_tunable(config);
    return supervise_self(launch, {.threads_per_rank = wanted_threads(config)});
  }
  const BucketTuning tuning =
      brigade::tune_buckets(config, launch.environment, arguments.tuner);
  if (is_writer)
    write_and_report(arguments, path, tuning);
}

}  // namespace brigade::cli
