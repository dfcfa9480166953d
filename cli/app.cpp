#include "cli/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <system_error>
#include <vector>

#include "brigade/base/version.h"
#include "brigade/files/usual_path.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/rank_report.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/parse_errors.h"
#include "cli/standard_streams.h"

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
    if (!environment.report_file.empty()) {
      RankReport(environment.report_file)
          .set_failure(fmt::format("{}: {}", kind_of(code), message));
      return;
    }
    if (environment.world_size > 1) {
      note(
          "error: rank {}: {}: {}\n", environment.rank, kind_of(code), message);
      return;
    }
  } catch (const std::exception&) {
    // Contradictory environment variables are among the errors reported here.
  }
  std::fflush(stdout);
  note("error: {}\n", message);
}

int fail(ExitCode code, const std::string& message) {
  tell_failure(code, message);
  return static_cast<int>(code);
}

namespace {

// What a command can do with less memory.
const char* memory_advice(const std::string& command) {
  if (command == "train" || command == "tune-buckets" || command == "tune-rate")
    return "use a smaller micro-batch, sequence or model, or more ranks";
  if (command == "generate")
    return "use a smaller --batch, or more ranks (--nproc and "
           "distributed.tp_size)";
  if (command == "chat")
    return "use a smaller model, or --dtype bfloat16";
  if (command == "evaluate")
    return "use a smaller --batch or --seq-length, or more ranks (--nproc and "
           "distributed.tp_size)";
  if (command == "prepare")
    return "use fewer --workers, or a machine with more memory";
  return "look for a limit (ulimit -v, or the job's), or use a machine with "
         "more memory";
}

int fail_out_of_memory() {
  const std::vector<std::string> arguments = program_arguments();
  return fail(
      ExitCode::kUnexpected,
      fmt::format(
          "out of memory; {}",
          memory_advice(arguments.size() > 1 ? arguments[1] : "")));
}

int fail_with_output(int error_number) {
  try {
    throw_output_failure(error_number);
  } catch (...) {
    return fail_with_current_exception();
  }
}

}  // namespace

int fail_unexpectedly(const std::string& message) {
  // These words are of libtorch's allocators, for CPUs and for GPUs.
  for (const char* words : {"can't allocate memory", "out of memory"}) {
    if (message.find(words) != std::string::npos)
      return fail_out_of_memory();
  }
  return fail(ExitCode::kUnexpected, message);
}

int fail_with_current_exception() {
  try {
    throw;
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail_out_of_memory();
  } catch (const std::filesystem::filesystem_error& error) {
    if (error.code() == std::errc::too_many_symbolic_link_levels)
      return fail(
          ExitCode::kData,
          describe_loop(loop_in(error.path1()).value_or(error.path1())));
    return fail(
        ExitCode::kStorage,
        fmt::format(
            "cannot use {}: {}",
            error.path1().empty() ? "a folder that was being read"
                                  : "'" + error.path1().string() + "'",
            error.code().message()));
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0)  // fmt::print() threw it
      return fail_with_output(error.code().value());
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
    return fail_unexpectedly(error.what());
  } catch (...) {
    return fail(ExitCode::kUnexpected, "an exception of unknown type");
  }
}

namespace {

// Without the older spellings, which are hidden, also where they have no name.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string text = "Usage: " + name;
    if (!app->get_options().empty())
      text += " [OPTIONS]";
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional() && !option->get_group().empty())
        text += " " + make_option_usage(option);
    }
    if (!app->get_subcommands(nullptr).empty())
      text += " COMMAND";
    return text + "\n";
  }
};

// brigade --cmake-dir: where find_package(brigade) finds the C++ library that
// is installed beside this program. Throws Error where it is not.
void print_cmake_folder() {
  const std::filesystem::path bin =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  // Relative to the program's folder, as both are installed.
  const std::filesystem::path folder =
      (bin / BRIGADE_CMAKE_FOLDER).lexically_normal();
  std::error_code error;
  if (!std::filesystem::exists(folder / "brigade-config.cmake", error)) {
    throw Error(
        ExitCode::kConfig,
        fmt::format(
            "the C++ library is not installed beside this program: '{}' has no "
            "brigade-config.cmake; install the package libbrigade-dev, the "
            "wheel, or a build (cmake --install)",
            folder.string()));
  }
  fmt::print("{}\n", folder.string());
}

}  // namespace

void add_commands(CLI::App& app) {
  app.name("brigade");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "brigade " + std::string(version()));
  app.add_flag_callback(
      "--cmake-dir",
      [] {
        print_cmake_folder();
        throw CLI::Success();
      },
      "Print the folder of the installed C++ library's CMake package, and "
      "exit");
  app.require_subcommand(1);
  app.footer("brigade COMMAND --help lists a command's options.");
  for (const auto add : {add_prepare,    add_train,        add_generate,
                         add_chat,       add_import,       add_inspect,
                         add_checkpoint, add_evaluate,     add_export,
                         add_doctor,     add_run,          add_report,
                         add_metrics,    add_tail,         add_create_config,
                         add_plan,       add_submit,       add_status,
                         add_analyze,    add_tune_buckets, add_tune_rate,
                         add_completion, add_man})
    add(app);
  check_path_options(app);
}

int run_and_report(int argc, char** argv, int (*report)()) {
  try {
    const int code = run_program(argc, argv);
    finish_output();
    return code;
  } catch (...) {
    return report();
  }
}

void end_with_current_exception(int (*report)()) noexcept {
  if (std::current_exception() == nullptr) {
    tell_failure(ExitCode::kUnexpected, "terminated without an exception");
    std::abort();
  }
  // Nothing of this process can be trusted to come to an end.
  const int code = report();
  std::fflush(nullptr);
  ::_exit(code);
}

int run_program(int argc, char** argv) {
  CLI::App app{
      "Brigade: pre-trains Llama-like models on libtorch, over data, tensor, "
      "pipeline,\ncontext and expert parallelism."};
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
    return fail(ExitCode::kConfig, explain_parse_error(app, error));
  }
  return 0;
}

}  // namespace brigade::cli
