#include "brigade/checkpoint/export_checkpoint.h"

#include <fmt/format.h>

#include <vector>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/model_spec/llama_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

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

SafetensorsDtype dtype_of(const Checkpoint& checkpoint) {
  const CheckpointManifest& manifest = checkpoint.manifest();
  if (manifest.dtype == "float32")
    return SafetensorsDtype::kF32;
  if (manifest.dtype == "bfloat16")
    return SafetensorsDtype::kBF16;
  throw DataError(fmt::format(
      "[export] the manifest of '{}' names the dtype '{}', expected float32 or "
      "bfloat16",
      checkpoint.directory().string(),
      manifest.dtype));
}

std::vector<FileToCopy> tokenizer_of(const Checkpoint& checkpoint) {
  const std::string& tokenizer = checkpoint.manifest().tokenizer;
  if (tokenizer.empty() || tokenizer == "bytes")
    return {};
  if (!is_bare_file_name(tokenizer)) {
    throw DataError(fmt::format(
        "[export] the manifest of '{}' names the tokenizer '{}', which is "
        "outside the checkpoint",
        checkpoint.directory().string(),
        tokenizer));
  }
  return find_tokenizer_files(checkpoint.directory() / tokenizer);
}

}  // namespace

ExportedModel export_checkpoint(
    const fs::path& path,
    const fs::path& out,
    const ExportOptions& options) {
  check_free(out);
  const Checkpoint checkpoint(path);
  const std::string reason = find_reason_to_reject(
      checkpoint.directory(),
      VerifyLevel::kFull,
      [&](uint64_t done_bytes, uint64_t total_bytes) {
        if (options.on_progress)
          options.on_progress("verifying", done_bytes, total_bytes);
      });
  if (!reason.empty())
    throw DataError(reason);
  const CheckpointManifest& manifest = checkpoint.manifest();
  const LlamaConfig config = model_of(checkpoint);
  HuggingFaceExport request;
  request.out = out;
  request.config =
      to_hugging_face_json(config, manifest.dtype, manifest.model_source);
  const auto put = [&](const char* key, const std::optional<int64_t>& id) {
    if (id && (!request.config.contains(key) || request.config[key].is_null()))
      request.config[key] = *id;
  };
  put("bos_token_id", options.bos_token_id);
  put("eos_token_id", options.eos_token_id);
  request.tensors = list_parameters(config);
  request.dtype = dtype_of(checkpoint);
  uint64_t done_bytes = 0;
  const uint64_t total_bytes = static_cast<uint64_t>(parameter_count(config)) *
                               (manifest.dtype == "float32" ? 4 : 2);
  request.read = [&](const std::string& name) {
    torch::Tensor tensor = checkpoint.read_whole(name);
    done_bytes += tensor.nbytes();
    if (options.on_progress)
      options.on_progress("exporting", done_bytes, total_bytes);
    return tensor;
  };
  request.files = tokenizer_of(checkpoint);
  const bool has_tokenizer = !request.files.empty();
  const fs::path generation = checkpoint.directory() / kGenerationConfig;
  if (fs::exists(generation))
    request.files.push_back({generation, kGenerationConfig});
  request.texts = options.more_files;
  request.max_shard_bytes = options.max_shard_bytes;
  export_hugging_face(request);
  return {
      parameter_count(config),
      manifest.step,
      manifest.dtype,
      manifest.tokenizer,
      has_tokenizer};
}

}  // namespace brigade
