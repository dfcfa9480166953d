// What several sub-commands share: who this process is, and starting ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/generate/model_place.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/restarts.h"
#include "brigade/launch/supervisor.h"
#include "brigade/topology/gpus.h"

namespace brigade::cli {

// Where this process stands. With --nproc, the world has that many ranks, and
// this process is either their supervisor or one of them.
struct Launch {
  LaunchEnvironment environment;
  int world_size = 1;
  // This process has the ranks still to start: call supervise_self().
  bool is_supervisor = false;
  // Exactly one process of the run on this machine has this set: for notes
  // that are to be read once.
  bool speaks_to_user() const {
    return is_supervisor ||
           (environment.launcher != "brigade" && environment.rank == 0);
  }
};

// `nproc` is --nproc's value; absent, the launcher's environment decides.
// `max_restarts` above 0 asks for a supervisor, even of one rank. Throws
// ConfigError when a launcher has started ranks and they disagree with it.
Launch read_launch(std::optional<int> nproc, int max_restarts = 0);

// argv of this process.
std::vector<std::string> program_arguments();

// CPU threads of this rank, before any of them is used: may replace the
// process by itself (launch/cpu_share.h). `wanted` is the config's
// environment.OMP_NUM_THREADS.
void share_out_threads(
    const LaunchEnvironment& environment,
    std::optional<int> wanted);

// Runs options.command. Prints what failed, the cause last. Throws Exit with
// the ranks' exit code unless it is 0, StorageError where standard output did
// not take all of their lines.
void supervise_and_print(
    const SupervisorOptions& options,
    RestartOptions restarts = {});

// The same as launch.world_size ranks. What the options leave open is: this
// program, this process's arguments, and no prefix for rank 0's lines.
void supervise_self(
    const Launch& launch,
    SupervisorOptions options = {},
    const RestartOptions& restarts = {});

// Validators for an option's check(), in place of CLI11's own, so that all say
// the same of a value that is wrong. `most` is also what the option's type can
// hold.
CLI::Validator whole_number(int64_t least, int64_t most);
CLI::Validator at_least(int64_t least);
CLI::Validator number_between(double least, double most);
// Names the nearest choice.
CLI::Validator one_of(const std::vector<std::string>& choices);
// "auto" and the names of an enum's values.
template <class Enum>
std::vector<std::string> names_with_auto() {
  auto names = choice_texts<Enum>();
  names.insert(names.begin(), "auto");
  return names;
}

// Throws ConfigError that names all of `options` that were given while none of
// `modes` was, without which they do nothing.
void refuse_without(
    const CLI::App& command,
    const std::vector<std::string>& modes,
    const std::vector<std::string>& options);

// --run, the same in all commands that work on a model or a run. `older`: other
// spellings that are accepted and not shown, "-c,--checkpoint" or, without
// dashes, one without a name; "": none. check_run() says that it is missing.
template <typename Target>
void add_run_option(
    CLI::App& command,
    Target& target,
    const std::string& older,
    const std::string& help) {
  command.add_option("--run", target, help)->type_name("DIR");
  if (!older.empty())
    command.add_option(older, target)->group("");
}
inline constexpr const char* kRunHelp =
    "A run, a checkpoint, a folder of checkpoints (the latest counts) or a "
    "Hugging Face folder";
// Throws ConfigError where it was not given.
void check_run(const CLI::App& command, const std::filesystem::path& run);

// --max-restarts.
void add_max_restarts(CLI::App& command, int& max_restarts);

// Options of every sub-command that works on a training config.
struct ConfigArguments {
  std::string path;
  std::optional<int> nproc;
  std::vector<std::string> overrides;
  std::string dtype;  // --dtype; "": none was given
};
void add_config_arguments(CLI::App& command, ConfigArguments& arguments);
// Without --nproc, for commands of one rank.
void add_config_of_one_rank(CLI::App& command, ConfigArguments& arguments);
// Without --config, for commands that have a layout but no file.
void add_rank_arguments(CLI::App& command, ConfigArguments& arguments);

// --dtype, as an override of model.dtype: for commands that compute with a
// stored model.
void add_dtype(CLI::App& command, ConfigArguments& arguments);
// --run, with `older` as in add_run_option(), and --adapter.
void add_model_options(
    CLI::App& command,
    ModelPlace& model,
    const std::string& older);

// The given values; BRIGADE_CHECK_COLLECTIVES=1 counts as
// distributed.check_collectives=true.
std::vector<ConfigOverride> config_overrides(const ConfigArguments& arguments);

// Finds models in the hub's cache on this machine; no network.
FindModel cached_model_finder();

// --help-config FORMAT: prints every key as "text" or "markdown". False for "".
bool print_config_help(const std::string& format);

// Loads it for `world_size` ranks on a host with these GPUs. Throws
// ConfigError.
LoadedConfig
load_config(const ConfigArguments& arguments, int world_size, const Gpus& gpus);

// Keys that were given and mean nothing, with the reasons, on stderr.
void print_ignored_keys(const LoadedConfig& loaded);

// What is possible but hardly meant, on stderr. Call once the model is known.
void print_warnings(const LoadedConfig& loaded);

// environment.OMP_NUM_THREADS as a number.
std::optional<int> wanted_threads(const TrainConfig& config);

}  // namespace brigade::cli
