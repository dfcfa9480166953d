// brigade inspect: its options.
#include <memory>

#include "brigade/base/error.h"
#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show what a dataset, tokenizer, safetensors file, checkpoint or config "
      "holds");
  command->add_option(
      "path",
      arguments->path,
      "PREFIX, .bin, .idx, .ds, .npy, tokenizer.json, .model, "
      ".safetensors, config.json, or a folder");
  add_run_option(*command, arguments->path, "", kRunHelp);
  command->add_option(
      "-t,--tokenizer",
      arguments->tokenizer,
      "Shows a dataset's text with this tokenizer [the dataset's own]");
  command
      ->add_option(
          "--document",
          arguments->document,
          "Shows this document of a dataset, counted from 0, whole")
      ->check(at_least(0));
  command->add_flag(
      "--all",
      arguments->list_all,
      "Lists every tensor, not one line for all layers");
  command->callback([arguments] {
    if (arguments->path.empty())
      throw ConfigError(
          "[inspect] nothing to inspect is given: a file, a folder, or a model "
          "with --run");
    inspect(*arguments);
  });
}

}  // namespace brigade::cli
