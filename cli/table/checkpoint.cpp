// brigade checkpoint: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

CLI::App* add_action(
    CLI::App& command,
    const std::string& name,
    const std::string& help,
    const std::shared_ptr<CheckpointArguments>& arguments,
    void (*run)(const CheckpointArguments&)) {
  CLI::App* action = command.add_subcommand(name, help);
  add_run_option(*action, arguments->path, "path", kRunHelp);
  action->callback([arguments, action, run] {
    check_run(*action, arguments->path);
    run(*arguments);
  });
  return action;
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  auto arguments = std::make_shared<CheckpointArguments>();
  CLI::App* command = app.add_subcommand(
      "checkpoint", "List, verify, inspect, prune or convert checkpoints");
  command->require_subcommand(1);
  add_action(
      *command,
      "list",
      "One line per checkpoint, by step",
      arguments,
      list_checkpoints);
  add_action(
      *command,
      "verify",
      "Compare every file with the SHA-256 that was written; exit code 4 when "
      "one differs",
      arguments,
      verify_checkpoints);
  add_action(
      *command,
      "inspect",
      "Where a checkpoint stands and what it holds",
      arguments,
      show_checkpoint);
  CLI::App* pruning = add_action(
      *command,
      "prune",
      "Remove old checkpoints; the newest valid one always stays",
      arguments,
      prune_checkpoints);
  pruning
      ->add_option(
          "--keep-last", arguments->retention.keep_last, "The newest so many")
      ->required()
      ->check(at_least(1));
  pruning
      ->add_option(
          "--keep-every",
          arguments->retention.keep_every,
          "And those of steps that this divides (default: none)")
      ->check(at_least(1));
  pruning->add_flag(
      "--dry-run",
      arguments->is_dry_run,
      "Only print what would be removed (default: off)");
  CLI::App* converting = add_action(
      *command,
      "convert",
      "Rewrite a checkpoint in the current format, with whole tensors in one "
      "file each\nfor weights and optimizer",
      arguments,
      convert_checkpoint);
  converting
      ->add_option(
          "--out", arguments->out, "The directory to write; it must not exist")
      ->type_name("DIR")
      ->required();
  command->footer(
      "Example: brigade checkpoint verify --run runs/run\n"
      "         brigade checkpoint prune --run runs/run --keep-last 2 "
      "--keep-every "
      "1000");
}

}  // namespace brigade::cli
