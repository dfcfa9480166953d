// brigade tune-rate --config FILE --widths N,N [group.key=value ...]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/gpus.h"
#include "brigade/files/file.h"
#include "brigade/files/output_path.h"
#include "brigade/metrics/progress_bar.h"
#include "brigade/report/rate_sweep.h"
#include "brigade/train/rate_tuner.h"
#include "cli/hub.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

fs::path result_path(const TuneRateArguments& arguments) {
  if (!arguments.out.empty())
    return arguments.out;
  fs::path path = arguments.config.path;
  return path.replace_extension(".rates" + path.extension().string());
}

template <typename Value>
std::vector<Value> ascending(std::vector<Value> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// What is to be tried, without trials yet.
RateSweep plan_sweep(
    const TuneRateArguments& arguments,
    const TrainConfig& config) {
  const double rate = config.training.lr.peak;
  RateSweep sweep;
  sweep.config_hash = config_hash(config);
  sweep.steps = arguments.steps;
  sweep.checked_steps = std::min(arguments.checked_steps, arguments.steps);
  sweep.widths = ascending(arguments.widths);
  sweep.rates = ascending(arguments.rates);
  if (sweep.rates.empty() && rate == 0)
    throw ConfigError(
        "[tune-rate] /training/learning_rate = 0 says no rates to try; set it, "
        "or give --rates");
  if (sweep.rates.empty())
    sweep.rates = {rate / 4, rate / 2, rate, 2 * rate, 4 * rate};
  sweep.checked_rate = *std::ranges::min_element(
      sweep.rates, {}, [&](double each) { return std::abs(each - rate); });
  for (const int64_t width : sweep.widths)
    static_cast<void>(with_width(config, width));
  return sweep;
}

void run_trials(
    RateSweep& sweep,
    const RateTuner& tuner,
    const fs::path& path) {
  const size_t total = sweep.widths.size() * sweep.rates.size();
  size_t number = 0;
  for (const int64_t width : sweep.widths) {
    for (const double rate : sweep.rates) {
      ++number;
      if (sweep.find(width, rate) != nullptr)
        continue;
      ProgressBar bar(
          fmt::format("{}/{} width {} at {:g}", number, total, width, rate),
          sweep.steps,
          visible_on_stderr());
      sweep.trials.push_back(
          tuner.try_rate(sweep, width, rate, [&](int64_t step, double loss) {
            bar.draw(step, fmt::format("loss {:.4f}", loss));
          }));
      write_text_file(path, sweep_to_text(sweep));
    }
  }
}

void print_sweep(const RateSweep& sweep, const TrainConfig& config) {
  fmt::print(
      "Coordinate check: mean change of activations after {} steps at {:g}, by "
      "width, with\nparametrization {} (slope of the log2: 0 where a rate does "
      "the same at every width)\n\n{}\nLoss after {} steps, mean of the last "
      "tenth (*: best of its width)\n\n{}\n",
      sweep.checked_steps,
      sweep.checked_rate,
      to_string(config.training.mup.parametrization),
      coordinate_table(sweep),
      sweep.steps,
      loss_table(sweep));
}

}  // namespace

void tune_rate(const TuneRateArguments& arguments) {
  const Launch launch = read_launch(std::nullopt);
  if (launch.world_size > 1)
    throw ConfigError(fmt::format(
        "[tune-rate] trains on one rank, but {} were started; start one",
        launch.world_size));
  LoadedConfig loaded = load_config(arguments.config, 1, find_gpus());
  TrainConfig& config = loaded.config;
  share_out_threads(launch.environment, wanted_threads(config));
  print_ignored_keys(loaded);
  fetch_model_if_missing(config);
  print_warnings(loaded);
  RateSweep sweep = plan_sweep(arguments, config);
  const fs::path path = result_path(arguments);
  if (fs::exists(path) && !is_written_in_place(path))
    sweep.trials = trials_of(read_text_file(path), path.string(), sweep);
  check_writable(path);
  if (!arguments.svg.empty())
    check_writable(arguments.svg, "<svg ");
  run_trials(sweep, RateTuner(config, launch.environment), path);
  write_text_file(path, sweep_to_text(sweep));
  if (!arguments.svg.empty())
    write_text_file(arguments.svg, sweep_svg(sweep));
  print_sweep(sweep, config);
  fmt::print("wrote {}\n", path.string());
}

}  // namespace brigade::cli
