// brigade generate --checkpoint DIR --prompt TEXT [--nproc N]
//                  [distributed.tp_size=2 ...]
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_generator.h"
#include "brigade/train/start_world.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

struct GenerateArguments {
  GenerateOptions text;
  ConfigArguments layout;
};

void generate(const GenerateArguments& arguments) {
  const GenerateOptions& options = arguments.text;
  const Launch launch = read_launch(arguments.layout.nproc);
  // Before anything is printed: it may start this process once more.
  if (!launch.is_supervisor)
    share_out_threads(launch.environment, std::nullopt);
  const TrainConfig config = inference_config(
      StoredModel(options.checkpoint),
      config_overrides(arguments.layout),
      launch.world_size);
  if (launch.is_supervisor) {
    // What can fail without ranks fails here, once, before there are any.
    check_generate_options(options);
    supervise_self(launch, {.threads_per_rank = {}, .reporting_rank = 0});
    return;
  }
  const auto mesh = start_world(config, launch.environment);
  const bool prints = mesh->rank() == 0;
  const auto write = [prints](std::string_view text) {
    if (!prints)
      return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  generate_text(options, config, *mesh, write);
  write("\n");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateOptions* options = &arguments->text;
  CLI::App* command =
      app.add_subcommand("generate", "Continue a prompt with a trained model");
  command
      ->add_option(
          "-c,--checkpoint,--run",
          options->checkpoint,
          "A checkpoint, a folder of checkpoints (the latest counts), a run "
          "folder or a Hugging Face folder")
      ->required()
      ->type_name("DIR");
  command->add_option("-p,--prompt", options->prompt, "The text to continue")
      ->type_name("TEXT");
  command
      ->add_option(
          "--tokenizer",
          options->tokenizer,
          "bytes, tokenizer.json, a .model or a folder (default: the "
          "checkpoint's)")
      ->type_name("SPEC");
  command
      ->add_option(
          "-n,--max-tokens", options->max_tokens, "Most tokens to generate")
      ->capture_default_str();
  command
      ->add_option(
          "-t,--temperature",
          options->temperature,
          "0: the likeliest token each time")
      ->capture_default_str();
  command
      ->add_option(
          "--top-k", options->top_k, "Draw from the k likeliest; 0: all")
      ->capture_default_str();
  command
      ->add_option(
          "--top-p",
          options->top_p,
          "Draw from the likeliest that together reach p; 1: all")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the draws")
      ->capture_default_str();
  add_rank_arguments(*command, arguments->layout);
  command->footer(
      "Example: brigade generate --run runs/run --prompt Once --nproc 2 "
      "distributed.tp_size=2");
  command->callback([arguments] { generate(*arguments); });
}

}  // namespace brigade::cli
