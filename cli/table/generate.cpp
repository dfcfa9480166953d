// brigade generate: its options.
#include <memory>

#include "cli/commands.h"
#include "cli/sampling_options.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

void add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateOptions* options = &arguments->text;
  CLI::App* command =
      app.add_subcommand("generate", "Continue prompts with a trained model");
  add_model_options(*command, options->model, "-c,--checkpoint");
  command
      ->add_option(
          "-p,--prompt",
          arguments->prompts,
          "The text to continue; several times for several; - is standard "
          "input")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--prompts",
          arguments->prompt_file,
          "A file with one prompt per line, as text or as JSON objects with "
          "\"prompt\"; - is standard input")
      ->type_name("FILE");
  command->add_option("--batch", options->batch, "Prompts at a time")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag(
      "--json",
      arguments->as_json,
      "Print a line of JSON per prompt (default: off)");
  add_tokenizer_option(*command, *options);
  add_sampling_options(*command, *options);
  add_dtype(*command, arguments->layout);
  add_rank_arguments(*command, arguments->layout);
  command->footer(
      "Example: brigade generate --run runs/run --prompt Once --nproc 2 "
      "distributed.tp_size=2\n         brigade generate --run runs/run "
      "--prompts "
      "questions.txt --json");
  command->callback([arguments, command] {
    check_run(*command, arguments->text.model.path);
    generate(*arguments);
  });
}

}  // namespace brigade::cli
