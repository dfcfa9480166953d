// brigade run -n 4 -- ./my_app args
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

struct RunArguments {
  int nproc = 1;
  std::vector<std::string> program;
  std::optional<int> threads;
  bool has_no_prefix = false;
  int max_restarts = 0;
};

}  // namespace

void add_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand(
      "run", "Start and supervise the ranks of any program on this machine");
  command->footer(
      "Example: brigade run -n 4 -- ./my_app --its-own arguments\n\n"
      "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in "
      "its\nenvironment, and BRIGADE_STORE_FILE, through which "
      "brigade::init_from_environment()\nmeets the others. The exit code is "
      "that of the first rank that fails.\nBRIGADE_RESTART_COUNT says how "
      "often "
      "the ranks were restarted.");
  command->add_option("-n,--nproc", arguments->nproc, "Number of ranks")
      ->type_name("N")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command
      ->add_option(
          "--threads",
          arguments->threads,
          "CPU threads of each rank (default: the CPUs shared out, unless "
          "OMP_NUM_THREADS is set)")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  add_max_restarts(*command, arguments->max_restarts);
  command->add_flag(
      "--no-prefix",
      arguments->has_no_prefix,
      "Print the ranks' lines without [rank R] (default: with)");
  command
      ->add_option(
          "program",
          arguments->program,
          "The program and its arguments, behind --")
      ->type_name("PROGRAM [ARGUMENTS...]");
  command->callback([arguments] {
    if (arguments->program.empty())
      throw ConfigError(
          "[run] no program is given; write it behind --, as in: brigade run "
          "-n 4 -- ./my_app");
    supervise_and_print(
        {.nproc = arguments->nproc,
         .command = arguments->program,
         .threads_per_rank = arguments->threads,
         .prefixes_lines = !arguments->has_no_prefix},
        {.limits = {.max_restarts = arguments->max_restarts}});
  });
}

}  // namespace brigade::cli
