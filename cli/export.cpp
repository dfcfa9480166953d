// brigade export --checkpoint DIR --out DIR
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/safetensors_folder.h"
#include "brigade/model/llama_config.h"
#include "brigade/model/param_names.h"
#include "cli/commands.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

struct Arguments {
  std::string checkpoint;
  std::string out;
  double shard_gb = 5;
};

LlamaConfig model_of(const Checkpoint& checkpoint) {
  std::vector<std::string> problems;
  const LlamaConfig config =
      parse_llama_config(checkpoint.manifest().model, "/model", problems);
  if (!problems.empty()) {
    throw DataError(fmt::format(
        "[export] the manifest of '{}' describes no model that can be "
        "exported: {}",
        checkpoint.directory().string(),
        problems.front()));
  }
  return config;
}

SafetensorsDtype dtype_of(const CheckpointManifest& manifest) {
  if (manifest.dtype == "float32")
    return SafetensorsDtype::kF32;
  if (manifest.dtype == "bfloat16")
    return SafetensorsDtype::kBF16;
  throw DataError(fmt::format(
      "[export] the manifest names the dtype '{}', expected float32 or "
      "bfloat16",
      manifest.dtype));
}

std::vector<FileToCopy> tokenizer_of(const Checkpoint& checkpoint) {
  const std::string& tokenizer = checkpoint.manifest().tokenizer;
  if (tokenizer.empty() || tokenizer == "bytes")
    return {};
  if (!is_bare_file_name(tokenizer)) {
    throw DataError(fmt::format(
        "[export] the manifest's tokenizer '{}' is outside the checkpoint",
        tokenizer));
  }
  return find_tokenizer_files(checkpoint.directory() / tokenizer);
}

void run_export(const Arguments& arguments) {
  const Checkpoint checkpoint(arguments.checkpoint);
  const CheckpointManifest& manifest = checkpoint.manifest();
  const LlamaConfig config = model_of(checkpoint);
  HuggingFaceExport request;
  request.out = arguments.out;
  request.config = to_hugging_face_json(config, manifest.dtype);
  for (const ParamInfo& param : list_parameters(config))
    request.tensors.push_back({param.name, param.shape});
  request.dtype = dtype_of(manifest);
  request.read = [&](const std::string& name) {
    return checkpoint.read_whole(name);
  };
  request.tokenizer_files = tokenizer_of(checkpoint);
  request.max_shard_bytes = static_cast<uint64_t>(arguments.shard_gb * 1e9);
  export_hugging_face(request);

  fmt::print(
      "{}: {} parameters of step {}, {}\n",
      arguments.out,
      parameter_count(config),
      manifest.step,
      manifest.dtype);
  if (request.tokenizer_files.empty()) {
    fmt::print(
        "No tokenizer was written: {}.\n",
        manifest.tokenizer == "bytes" ? "transformers has none for plain bytes"
                                      : "the checkpoint holds none");
  }
  fmt::print(
      "Load it: transformers.AutoModelForCausalLM.from_pretrained('{}')\n",
      fs::absolute(arguments.out).string());
}

}  // namespace

void add_export(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
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
