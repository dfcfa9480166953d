// brigade export: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand(
      "export",
      "Write a checkpoint's model as a Hugging Face folder, which "
      "transformers,\nvLLM and llama.cpp load");
  command->footer(
      "Example: brigade export --checkpoint runs/run/checkpoints --out model");
  command
      ->add_option(
          "--checkpoint",
          arguments->checkpoint,
          "A checkpoint, or a folder of checkpoints: the latest of them")
      ->type_name("DIR")
      ->required();
  command
      ->add_option(
          "--out", arguments->out, "The folder to write; it must not exist")
      ->type_name("DIR")
      ->required();
  command
      ->add_option(
          "--shard-gb",
          arguments->shard_gb,
          "Split the weights in files of at most so many GB")
      ->type_name("GB")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  command->callback([arguments] { export_model(*arguments); });
}

}  // namespace brigade::cli
