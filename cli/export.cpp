// brigade export --checkpoint DIR --out DIR
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "brigade/checkpoint/export_checkpoint.h"
#include "cli/commands.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

struct ExportArguments {
  std::string checkpoint;
  std::string out;
  double shard_gb = 5;
};

void run_export(const ExportArguments& arguments) {
  const ExportedModel model = export_checkpoint(
      arguments.checkpoint,
      arguments.out,
      static_cast<uint64_t>(arguments.shard_gb * 1e9));
  fmt::print(
      "{}: {} parameters of step {}, {}\n",
      arguments.out,
      model.parameters,
      model.step,
      model.dtype);
  if (!model.has_tokenizer) {
    fmt::print(
        "No tokenizer was written: {}.\n",
        model.tokenizer == "bytes" ? "transformers has none for plain bytes"
                                   : "the checkpoint holds none");
  }
  fmt::print(
      "Load it: transformers.AutoModelForCausalLM.from_pretrained('{}')\n",
      fs::absolute(arguments.out).string());
}

}  // namespace

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
  command->callback([arguments] { run_export(*arguments); });
}

}  // namespace brigade::cli
