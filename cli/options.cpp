#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/json/nearest.h"
#include "brigade/launch/cpu_share.h"
#include "cli/commands.h"
#include "cli/hub.h"
#include "cli/standard_streams.h"

namespace brigade::cli {

Launch read_launch(std::optional<int> nproc, int max_restarts) {
  Launch launch{.environment = read_environment(process_environment())};
  const LaunchEnvironment& environment = launch.environment;
  launch.world_size = environment.world_size;
  if (environment.launcher == "single") {
    launch.world_size = nproc.value_or(1);
    launch.is_supervisor = launch.world_size > 1 || max_restarts > 0;
  } else if (max_restarts > 0 && environment.launcher != "brigade") {
    throw ConfigError(fmt::format(
        "[launch] --max-restarts restarts the ranks that --nproc starts, but "
        "{} has started these; let it restart them (torchrun --max-restarts, "
        "sbatch --requeue) with checkpoint.load_path=auto",
        environment.launcher));
  } else if (nproc && *nproc != environment.world_size) {
    throw ConfigError(fmt::format(
        "[launch] --nproc {}, but {} has already started {} ranks, of which "
        "this is rank {}; leave --nproc out",
        *nproc,
        environment.launcher,
        environment.world_size,
        environment.rank));
  }
  return launch;
}

std::vector<std::string> program_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  size_t begin = 0;
  for (size_t end = bytes.find('\0'); end != std::string::npos;
       end = bytes.find('\0', begin)) {
    arguments.push_back(bytes.substr(begin, end - begin));
    begin = end + 1;
  }
  return arguments;
}

void share_out_threads(
    const LaunchEnvironment& environment,
    std::optional<int> wanted) {
  share_out_cpu_threads(
      environment, process_environment(), wanted, program_arguments());
}

namespace {

// How wide the terminal is, for the bars of ranks, which write into pipes.
void tell_columns_to_ranks() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    ::setenv("COLUMNS", std::to_string(size.ws_col).c_str(), 1);
}

}  // namespace

void supervise_self(
    const Launch& launch,
    SupervisorOptions options,
    const RestartOptions& restarts) {
  tell_columns_to_ranks();
  options.nproc = launch.world_size;
  if (options.command.empty())
    options.command = program_arguments();
  if (options.executable.empty())
    options.executable = "/proc/self/exe";
  options.unprefixed_rank = options.unprefixed_rank.value_or(0);
  supervise_and_print(options, restarts);
}

void supervise_and_print(
    const SupervisorOptions& options,
    RestartOptions restarts) {
  restarts.on_message = [](const std::string& line) {
    std::fflush(stdout);
    note("{}\n", line);
    std::fflush(stderr);
  };
  const SupervisorResult result = supervise_with_restarts(options, restarts);
  if (result.exit_code != 0)
    throw Exit{result.exit_code};
  if (result.output_failure != 0)
    throw_output_failure(result.output_failure);
}

CLI::Validator whole_number(int64_t least, int64_t most) {
  using Limits = std::numeric_limits<int64_t>;
  const bool has_most = most != Limits::max();
  const std::string range = has_most ? fmt::format("{} to {}", least, most)
                            : least == Limits::min()
                                ? std::string()
                                : fmt::format(">= {}", least);
  return {
      [=](const std::string& text) {
        int64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto [parsed, error] = std::from_chars(text.data(), end, number);
        // Read as octal elsewhere: 010 would be 8.
        const size_t digits = text.starts_with('-') ? 1 : 0;
        if (text.size() > digits + 1 && text[digits] == '0' && parsed == end)
          return fmt::format(
              "expected a whole number without a leading 0, not '{}'", text);
        if (error == std::errc() && parsed == end && number >= least &&
            number <= most)
          return std::string();
        // Where a number only has too many digits, the most is news.
        const bool is_too_large = error == std::errc::result_out_of_range;
        return fmt::format(
            "expected a whole number{}{}, not '{}'",
            has_most || is_too_large ? " from "
            : range.empty()          ? ""
                                     : " ",
            is_too_large ? fmt::format("{} to {}", least, most) : range,
            text);
      },
      range};
}

CLI::Validator at_least(int64_t least) {
  return whole_number(least, std::numeric_limits<int64_t>::max());
}

CLI::Validator number_between(double least, double most) {
  const std::string range = fmt::format("{} to {}", least, most);
  return {
      [=](const std::string& text) {
        const auto number = parse_number<double>(text);
        const bool is_good = number && *number >= least && *number <= most;
        return is_good
                   ? std::string()
                   : fmt::format(
                         "expected a number from {}, not '{}'", range, text);
      },
      range};
}

CLI::Validator one_of(const std::vector<std::string>& choices) {
  return {
      [choices](const std::string& text) {
        const bool is_good =
            std::find(choices.begin(), choices.end(), text) != choices.end();
        return is_good ? std::string()
                       : fmt::format(
                             "'{}' is none of {}; the nearest is '{}'",
                             text,
                             fmt::join(choices, ", "),
                             choices[nearest_name(text, choices)]);
      },
      fmt::format("{{{}}}", fmt::join(choices, ","))};
}

void check_run(const CLI::App& command, const std::filesystem::path& run) {
  if (!run.empty())
    return;
  std::string problem = fmt::format(
      "[{}] --run DIR is missing: a run, a checkpoint or a Hugging Face folder",
      command.get_name());
  // A path without its option is taken for one of these.
  if (const auto* overrides = command.get_option_no_throw("overrides")) {
    for (const std::string& word : overrides->results()) {
      if (word.find('=') == std::string::npos)
        problem += fmt::format("; '{}' is no group.key=value", word);
    }
  }
  throw ConfigError(problem);
}

void refuse_without(
    const CLI::App& command,
    const std::vector<std::string>& modes,
    const std::vector<std::string>& options) {
  const auto is_given = [&](const std::string& option) {
    return command.count(option) > 0;
  };
  if (std::ranges::any_of(modes, is_given))
    return;
  std::vector<std::string> problems;
  for (const std::string& option : options) {
    if (is_given(option))
      problems.push_back(fmt::format(
          "[{}] {} does nothing without {}; leave it out",
          command.get_name(),
          option,
          fmt::join(modes, " or ")));
  }
  if (!problems.empty())
    throw ConfigError(problems);
}

void add_max_restarts(CLI::App& command, int& max_restarts) {
  command
      .add_option(
          "--max-restarts",
          max_restarts,
          "After a failure, start all ranks again, at most this often")
      ->type_name("K")
      ->check(whole_number(0, 1000000))
      ->capture_default_str();
}

namespace {

void add_config_path(CLI::App& command, ConfigArguments& arguments) {
  command
      .add_option(
          "--config", arguments.path, "The run's JSON file (docs/config.md)")
      ->type_name("FILE");
}

void add_overrides(CLI::App& command, ConfigArguments& arguments) {
  command
      .add_option(
          "overrides",
          arguments.overrides,
          "Values in place of the file's, such as distributed.dp_size=2")
      ->type_name("group.key=value");
}

}  // namespace

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  add_config_path(command, arguments);
  add_rank_arguments(command, arguments);
}

void add_config_of_one_rank(CLI::App& command, ConfigArguments& arguments) {
  add_config_path(command, arguments);
  add_overrides(command, arguments);
}

void add_dtype(CLI::App& command, ConfigArguments& arguments) {
  command
      .add_option(
          "--dtype", arguments.dtype, "Compute in it (default: the model's)")
      ->check(one_of(choice_texts<ModelDtype>()));
}

void add_model_options(
    CLI::App& command,
    ModelPlace& model,
    const std::string& older) {
  add_run_option(command, model.path, older, kRunHelp);
  command
      .add_option(
          "--adapter",
          model.adapter,
          "A low-rank adapter for the model: a folder as PEFT writes it")
      ->type_name("DIR");
}

void add_rank_arguments(CLI::App& command, ConfigArguments& arguments) {
  command
      .add_option(
          "--nproc",
          arguments.nproc,
          "Start this many ranks on this machine (default: what torchrun, "
          "mpirun or srun started, else 1)")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  add_overrides(command, arguments);
}

FindModel cached_model_finder() {
  return [hub = hub_options(process_environment())](const std::string& id) {
    return find_in_hub_cache(
        id,
        {.tokenizer = HubContent::Tokenizer::kSkip,
         .weights = HubContent::Weights::kSkip},
        hub);
  };
}

bool print_config_help(const std::string& format) {
  if (format.empty())
    return false;
  fmt::print(
      "{}",
      format == "markdown" ? describe_keys_as_markdown() : describe_keys());
  return true;
}

LoadedConfig load_config(
    const ConfigArguments& arguments,
    int world_size,
    const Gpus& gpus) {
  for (const std::string& text : arguments.overrides) {
    if (arguments.path.empty() && text.find('=') == std::string::npos)
      throw ConfigError(fmt::format(
          "[config] '{0}' is no group.key=value; a config file is given with "
          "--config {0}",
          text));
  }
  if (arguments.path.empty())
    throw ConfigError(
        "[config] --config FILE is missing; try --config "
        "examples/quickstart.json");
  LoadOptions options{
      .path = arguments.path, .world_size = world_size, .gpus = gpus};
  options.find_model = cached_model_finder();
  options.overrides = config_overrides(arguments);
  return load_train_config(options);
}

std::vector<ConfigOverride> config_overrides(const ConfigArguments& arguments) {
  std::vector<ConfigOverride> overrides;
  if (process_environment()("BRIGADE_CHECK_COLLECTIVES") == "1")
    overrides.push_back(
        {"distributed.check_collectives=true", ValueOrigin::kEnvironment});
  if (!arguments.dtype.empty())
    overrides.push_back({"model.dtype=" + arguments.dtype});
  for (const std::string& text : arguments.overrides)
    overrides.push_back({text});
  return overrides;
}

void print_ignored_keys(const LoadedConfig& loaded) {
  if (loaded.ignored.empty())
    return;
  note("note: these keys of the config are ignored:\n");
  for (const std::string& line : loaded.ignored)
    note("  {}\n", line);
}

void print_warnings(const LoadedConfig& loaded) {
  for (const std::string& warning : find_warnings(loaded))
    note("warning: {}\n", warning);
}

std::optional<int> wanted_threads(const TrainConfig& config) {
  const auto& text = config.environment.OMP_NUM_THREADS;
  if (!text)
    return std::nullopt;
  return std::stoi(*text);  // checked when it was parsed
}

}  // namespace brigade::cli
