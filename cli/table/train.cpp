// brigade train: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_train(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand(
      "train", "Train the model that a config file describes");
  add_config_arguments(*command, arguments->config);
  add_max_restarts(*command, arguments->max_restarts);
  command->add_flag(
      "--print-config",
      arguments->prints_config,
      "Print every value with where it came from, and stop (default: off)");
  command->add_flag(
      "--dry-run",
      arguments->is_dry_run,
      "Check all that can be checked without starting ranks, print the layout, "
      "parameters and buckets, and stop (default: off)");
  command->add_flag(
      "--print-schedule",
      arguments->prints_schedule,
      "Draw the pipeline schedule, and stop (default: off)");
  command->add_flag(
      "--report-overlap",
      arguments->run.report_overlap,
      "Print at the end what communication cost, by bucket (default: off)");
  command->add_flag(
      "--overwrite",
      arguments->run.overwrite,
      "Replace the run that logging.run_dir holds (default: refuse)");
  command
      ->add_option(
          "--help-config",
          arguments->help_config,
          "Print every key of the config file, as text or markdown, and stop")
      ->expected(0, 1)
      ->type_name("FORMAT")
      ->default_str("text")
      ->check(one_of({"text", "markdown"}));
  command->footer(
      "Example: brigade train --config examples/quickstart.json --nproc 2 "
      "training.seed=7");
  command->callback([arguments] { train(*arguments); });
}

}  // namespace brigade::cli
