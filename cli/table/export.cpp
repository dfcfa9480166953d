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
  command->footer("Example: brigade export --run runs/run --out model");
  add_run_option(*command, arguments->checkpoint, "-c,--checkpoint", kRunHelp);
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
      ->check(number_between(1e-6, 1e6))
      ->capture_default_str();
  command->callback([arguments, command] {
    check_run(*command, arguments->checkpoint);
    export_model(*arguments);
  });
}

}  // namespace brigade::cli
