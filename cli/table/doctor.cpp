// brigade doctor: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_doctor(CLI::App& app) {
  auto arguments = std::make_shared<DoctorArguments>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Check a machine, and training on it in every layout");
  command->footer(
      "Example: brigade doctor --nproc 4\n\n"
      "Also under torchrun, mpirun and srun, over all their ranks. Exit code 0 "
      "when\neverything is right, 1 where something is wrong, 6 where FOLDER "
      "cannot be\nwritten.");
  command->add_option("--nproc", arguments->nproc, "Ranks to start here")
      ->type_name("N")
      ->check(whole_number(1, 4096));
  command
      ->add_option(
          "--folder",
          arguments->folder,
          "Where to write 128 MiB for a moment; shared by all hosts")
      ->capture_default_str();
  command->callback([arguments] { check_machine(*arguments); });
}

}  // namespace brigade::cli
