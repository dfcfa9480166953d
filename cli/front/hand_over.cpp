// The commands of cli/torch_commands.h in the program that has no libtorch: the
// process becomes brigade-torch, with the same command line, environment and
// process id. Only the ranks of a run on CPUs are processes of their own, which
// it supervises.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/rank_process.h"
#include "brigade/launch/rank_signals.h"
#include "cli/begin_training.h"
#include "cli/plan.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTorchProgram = "brigade-torch";

// Under a limit of address space (ulimit -v) the dynamic loader may fail, in
// words of its own: what it would do is tried first.
void require_address_space(const fs::path& program) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return;
  const pid_t child = ::fork();
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
    ::execl(program.c_str(), program.c_str(), "--version", nullptr);
    ::_exit(0);  // the process itself says why
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || status == 0)
    return;
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "out of memory: libtorch does not fit into the {} KiB of address "
          "space that this process may have; raise the limit (ulimit -v)",
          limit.rlim_cur / KiB));
}

// Beside this program, as built, or where BRIGADE_LIBEXEC (relative to it) puts
// it, as installed.
fs::path torch_program() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path beside = folder / kTorchProgram;
  std::error_code error;
  fs::path program = beside;
  if (!fs::exists(beside, error)) {
    program = (folder / BRIGADE_LIBEXEC / kTorchProgram).lexically_normal();
    if (!fs::exists(program, error))
      throw Error(
          ExitCode::kUnexpected,
          fmt::format(
              "the installation is not complete: there is neither '{}' nor "
              "'{}'",
              beside.string(),
              program.string()));
  }
  require_address_space(program);
  return program;
}

[[noreturn]] void throw_cannot_start(const fs::path& program) {
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "cannot start '{}': {}", program.string(), std::strerror(errno)));
}

// The same file for as long as this process runs, whatever takes its place.
fs::path held(const fs::path& program) {
  const int file = ::open(program.c_str(), O_PATH | O_CLOEXEC);
  if (file < 0 || ::access(program.c_str(), X_OK) != 0)
    throw_cannot_start(program);
  return fmt::format("/proc/self/fd/{}", file);
}

void hand_over() {
  const fs::path program = torch_program();
  ::execv(program.c_str(), as_pointers(program_arguments()).data());
  throw_cannot_start(program);
}

// A token is some hundred products of a few microseconds. Between them OpenMP's
// threads wait for one another. libgomp's do so for milliseconds before they
// sleep, on a core that others may need, on a busy machine the very thread that
// is waited for: a hundred times slower was seen. So they wait some 30 us.
void hand_over_generation() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr)
    set_default_variable("GOMP_SPINCOUNT", "2000");
  hand_over();
}

// Reports what is wrong in the config before libtorch is loaded, which is what
// counts GPUs: std::nullopt where it is wrong only with some. Not under a
// launcher either, whose ranks announce to one another why one of them stops.
std::optional<LoadedConfig> load_without_torch(
    const ConfigArguments& arguments,
    const Launch& launch) {
  if (launch.environment.launcher != "single")
    return std::nullopt;
  try {
    return load_config(arguments, launch.world_size, gpus_elsewhere());
  } catch (const ConfigError&) {
    bool is_right = gpus_elsewhere().count > 0;
    try {
      if (is_right)
        static_cast<void>(load_config(arguments, launch.world_size, Gpus{}));
    } catch (const Error&) {
      is_right = false;
    }
    if (is_right)
      return std::nullopt;
    throw;
  }
}

void check_config(const ConfigArguments& arguments) {
  load_without_torch(arguments, read_launch(arguments.nproc));
}

}  // namespace

void train(const TrainArguments& arguments) {
  if (print_config_help(arguments.help_config))
    return;
  const Launch launch =
      read_launch(arguments.config.nproc, arguments.max_restarts);
  auto loaded = load_without_torch(arguments.config, launch);
  const bool is_rank = arguments.trains() && !launch.is_supervisor;
  if (is_rank)
    hold_save_requests();
  if (!loaded || loaded->config.trains_on_gpus() || is_rank)
    return hand_over();
  begin_training(
      arguments,
      launch,
      arguments.trains() ? held(torch_program()) : fs::path(),
      *loaded);
}

void tune_buckets(const TuneBucketsArguments& arguments) {
  check_config(arguments.config);
  hand_over();
}

void tune_rate(const TuneRateArguments& arguments) {
  check_config(arguments.config);
  hand_over();
}

void generate(const GenerateArguments&) {
  hand_over_generation();
}
void chat(const ChatSessionArguments&) {
  hand_over_generation();
}
void evaluate(const EvaluateArguments&) {
  hand_over();
}
void export_model(const ExportArguments&) {
  hand_over();
}
void check_machine(const DoctorArguments&) {
  hand_over();
}
void list_checkpoints(const CheckpointArguments&) {
  hand_over();
}
void verify_checkpoints(const CheckpointArguments&) {
  hand_over();
}
void show_checkpoint(const CheckpointArguments&) {
  hand_over();
}
void prune_checkpoints(const CheckpointArguments&) {
  hand_over();
}
void convert_checkpoint(const CheckpointArguments&) {
  hand_over();
}
void inspect(const InspectArguments&) {
  hand_over();
}
void calibrate(const PlanArguments&) {
  hand_over();
}

}  // namespace brigade::cli
