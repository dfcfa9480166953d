// brigade generate --checkpoint DIR --prompt TEXT
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "brigade/train/text_generator.h"
#include "cli/commands.h"

namespace brigade::cli {

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      app.add_subcommand("generate", "Continue a prompt with a trained model");
  command
      ->add_option(
          "-c,--checkpoint,--run",
          options->checkpoint,
          "A checkpoint, a folder of checkpoints (the latest counts) or a run "
          "folder")
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
  command->callback([options] {
    generate_text(*options, [](std::string_view text) {
      fmt::print("{}", text);
      std::fflush(stdout);
    });
    fmt::print("\n");
  });
}

}  // namespace brigade::cli
