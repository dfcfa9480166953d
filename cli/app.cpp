#include "cli/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>
#include <vector>

#include "brigade/base/version.h"
#include "brigade/json/nearest.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/rank_report.h"
#include "cli/commands.h"

namespace brigade::cli {

namespace {

const char* kind_of(ExitCode code) {
  switch (code) {
    case ExitCode::kConfig:
      return "ConfigError";
    case ExitCode::kComm:
      return "CommError";
    case ExitCode::kData:
      return "DataError";
    case ExitCode::kNumeric:
      return "NumericError";
    case ExitCode::kStorage:
      return "StorageError";
    case ExitCode::kStalled:
      return "StallError";
    case ExitCode::kOk:
    case ExitCode::kUnexpected:
      break;
  }
  return "unexpected error";
}

}  // namespace

void tell_failure(ExitCode code, const std::string& message) noexcept {
  try {
    const LaunchEnvironment environment =
        read_environment(process_environment());
    RankReport report(environment.report_file);
    if (report.is_read_by_supervisor()) {
      report.set_failure(fmt::format("{}: {}", kind_of(code), message));
      return;
    }
    if (environment.world_size > 1) {
      fmt::print(
          stderr,
          "error: rank {}: {}: {}\n",
          environment.rank,
          kind_of(code),
          message);
      return;
    }
  } catch (const std::exception&) {
    // Contradictory environment variables are among the errors reported here.
  }
  std::fflush(stdout);
  fmt::print(stderr, "error: {}\n", message);
}

int fail(ExitCode code, const std::string& message) {
  tell_failure(code, message);
  return static_cast<int>(code);
}

int fail_with_current_exception() {
  try {
    throw;
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(
        ExitCode::kUnexpected,
        "out of memory; use a smaller micro-batch, sequence or model, or more "
        "ranks");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(
        ExitCode::kStorage,
        fmt::format(
            "cannot use '{}': {}",
            error.path1().string(),
            error.code().message()));
  } catch (const std::system_error& error) {
    const bool is_thread =
        error.code() == std::errc::resource_unavailable_try_again;
    return fail(
        ExitCode::kUnexpected,
        is_thread ? fmt::format(
                        "cannot start a thread ({}): a limit of address space "
                        "(ulimit -v), processes (ulimit -u) or of the job's "
                        "control group is too low",
                        error.what())
                  : std::string(error.what()));
  } catch (const std::exception& error) {
    return fail(ExitCode::kUnexpected, error.what());
  } catch (...) {
    return fail(ExitCode::kUnexpected, "an exception of unknown type");
  }
}

namespace {

// What to say about a first word that is no sub-command; "": it is one.
std::string check_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr))
    names.push_back(command->get_name());
  if (name.starts_with('-') ||
      std::find(names.begin(), names.end(), name) != names.end())
    return "";
  return fmt::format(
      "unknown command '{}'; the nearest is '{}' (all: {})",
      name,
      names[nearest_name(name, names)],
      fmt::join(names, ", "));
}

}  // namespace

void add_commands(CLI::App& app) {
  app.name("brigade");
  app.set_version_flag("--version", "brigade " + std::string(version()));
  app.require_subcommand(1);
  app.footer("brigade COMMAND --help lists a command's options.");
  for (const auto add :
       {add_prepare,       add_train,        add_generate,   add_inspect,
        add_checkpoint,    add_evaluate,     add_export,     add_doctor,
        add_run,           add_report,       add_metrics,    add_tail,
        add_create_config, add_plan,         add_submit,     add_status,
        add_analyze,       add_tune_buckets, add_completion, add_man})
    add(app);
}

int run_program(int argc, char** argv) {
  CLI::App app{
      "Brigade: pre-trains Llama-like models on libtorch, over data, tensor, "
      "pipeline and\ncontext parallelism."};
  add_commands(app);
  // CLI11 would only say that a sub-command is missing.
  const std::string problem = argc > 1 ? check_command(app, argv[1]) : "";
  if (!problem.empty())
    return fail(ExitCode::kConfig, problem);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0)
      return app.exit(error);  // --help, --version
    const auto used = app.get_subcommands();
    return fail(
        ExitCode::kConfig,
        fmt::format(
            "{}; see brigade {}--help",
            error.what(),
            used.empty() ? "" : used.front()->get_name() + " "));
  }
  return 0;
}

}  // namespace brigade::cli
