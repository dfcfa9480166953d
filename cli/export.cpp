// brigade export --checkpoint DIR --out DIR
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/export_checkpoint.h"
#include "brigade/tokenizer/tokenizer.h"
#include "cli/commands.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

struct ExportArguments {
  std::string checkpoint;
  std::string out;
  double shard_gb = 5;
};

// What transformers needs beside the tokenizer's own file.
std::string tokenizer_config(
    const Tokenizer& tokenizer,
    bool is_sentencepiece,
    const nlohmann::json& model) {
  nlohmann::json config = {
      {"tokenizer_class",
       is_sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"model_max_length", model.value("max_position_embeddings", 2048)}};
  const auto put = [&](const char* key, const std::optional<int32_t>& id) {
    if (const auto text = id ? tokenizer.token_text(*id) : std::nullopt)
      config[key] = *text;
  };
  put("bos_token", tokenizer.bos_id());
  put("eos_token", tokenizer.eos_id());
  if (is_sentencepiece)
    config["add_bos_token"] = false;
  return config.dump(2) + "\n";
}

// What the checkpoint's tokenizer says of itself; nothing where it has none
// that transformers knows.
void describe_tokenizer(const fs::path& checkpoint, ExportOptions& options) {
  const Checkpoint opened(checkpoint);
  const std::string& name = opened.manifest().tokenizer;
  const fs::path beside = opened.directory() / name;
  if (name.empty() || name == "bytes" || !fs::exists(beside))
    return;
  const auto tokenizer = load_tokenizer(beside.string());
  options.bos_token_id = tokenizer->bos_id();
  options.eos_token_id = tokenizer->eos_id();
  options.more_files["tokenizer_config.json"] = tokenizer_config(
      *tokenizer,
      tokenizer_file(beside).extension() == ".model",
      opened.manifest().model);
}

void run_export(const ExportArguments& arguments) {
  ExportOptions options;
  options.max_shard_bytes = static_cast<uint64_t>(arguments.shard_gb * 1e9);
  describe_tokenizer(arguments.checkpoint, options);
  const ExportedModel model =
      export_checkpoint(arguments.checkpoint, arguments.out, options);
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
