// brigade inspect: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_inspect(CLI::App& app) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Show what a dataset, tokenizer, safetensors file, checkpoint or config "
      "holds");
  command
      ->add_option(
          "path",
          arguments->path,
          "PREFIX, .bin, .idx, .ds, .npy, tokenizer.json, .model, "
          ".safetensors, config.json, or a folder")
      ->required();
  command->add_option(
      "-t,--tokenizer",
      arguments->tokenizer,
      "Shows a dataset's text with this tokenizer [the dataset's own]");
  command->add_option(
      "--document",
      arguments->document,
      "Shows this document of a dataset, counted from 0, whole");
  command->add_flag(
      "--all",
      arguments->list_all,
      "Lists every tensor, not one line for all layers");
  command->callback([arguments] { inspect(*arguments); });
}

}  // namespace brigade::cli
