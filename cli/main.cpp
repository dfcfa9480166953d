// brigade: parses the command line, runs one sub-command, and turns what went
// wrong into one message and one exit code (ARCHITECTURE.md, "Errors").
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "brigade/base/error.h"
#include "brigade/json/nearest.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/rank_report.h"
#include "cli/commands.h"
#include "cli/library_logs.h"
#include "cli/training_step.h"

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

// To the supervisor, who prints the cause last, or to stderr.
void tell(ExitCode code, const std::string& message) noexcept {
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
  tell(code, message);
  return static_cast<int>(code);
}

// The message of whatever is being handled, and its exit code.
int fail_with_current_exception() {
  try {
    throw;
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const c10::Error& error) {
    return fail(ExitCode::kUnexpected, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail(
        ExitCode::kUnexpected,
        "out of memory; use a smaller micro-batch, sequence or model, or more "
        "ranks");
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

// A thread of c10d that serves or watches the store throws where nobody can
// catch when its connection is lost.
[[noreturn]] void fail_with_lost_store(const std::system_error& error) {
  const int64_t step = training_step;
  fail(
      ExitCode::kComm,
      fmt::format(
          "[store] a connection to the store where the ranks met was lost{}: "
          "{}; its host, or the network, failed",
          step < 0 ? "" : fmt::format(" at step {}", step),
          error.what()));
  std::fflush(stdout);
  ::_exit(static_cast<int>(ExitCode::kComm));
}

// Some threads of libtorch let exceptions escape: no abort without a reason.
[[noreturn]] void on_terminate() {
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::system_error& error) {
      const bool is_connection = error.code() == std::errc::connection_reset ||
                                 error.code() == std::errc::broken_pipe ||
                                 error.code() == std::errc::not_connected;
      if (is_connection)
        fail_with_lost_store(error);
      fail_with_current_exception();
    } catch (...) {
      fail_with_current_exception();
    }
  } else {
    tell(ExitCode::kUnexpected, "terminated without an exception");
  }
  std::abort();
}

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

int run(int argc, char** argv) {
  CLI::App app{
      "Brigade: pre-trains Llama-like models on libtorch, over data, tensor, "
      "pipeline and\ncontext parallelism."};
  app.name("brigade");
  app.set_version_flag("--version", "brigade " BRIGADE_VERSION);
  app.require_subcommand(1);
  app.footer("brigade COMMAND --help lists a command's options.");
  for (const auto add :
       {add_prepare,
        add_train,
        add_generate,
        add_inspect,
        add_checkpoint,
        add_evaluate,
        add_export,
        add_doctor,
        add_run,
        add_report,
        add_metrics,
        add_tail,
        add_plan,
        add_submit,
        add_status,
        add_analyze,
        add_tune_buckets})
    add(app);
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

}  // namespace

}  // namespace brigade::cli

// The sanitizer's search for leaks, where there is one.
extern "C" __attribute__((weak)) void __lsan_do_leak_check();

int main(int argc, char** argv) {
  std::set_terminate(brigade::cli::on_terminate);
  brigade::cli::silence_library_logs();
  brigade::ops::set_up_tensor_memory();
  int code = 0;
  try {
    code = brigade::cli::run(argc, argv);
  } catch (...) {
    code = brigade::cli::fail_with_current_exception();
  }
  // Not exit(), which runs the destructors of libraries: OpenBLAS' waits for
  // its threads, and one that cannot map its memory (ulimit -v) tries forever.
  std::fflush(nullptr);
  if (__lsan_do_leak_check != nullptr)
    __lsan_do_leak_check();
  ::_exit(code);
}
