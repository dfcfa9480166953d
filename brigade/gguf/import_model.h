// A GGUF file as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace brigade {

struct ImportedModel {
  int64_t parameters = 0;
  std::string architecture;  // "llama"
  std::string dtype;         // of the matrices, as config.json says it
  bool has_tokenizer = false;
};

using ImportProgress =
    std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Writes config.json, generation_config.json, model.safetensors and the
// tokenizer's files; the folder is whole or absent. f32, f16 and bf16 tensors
// keep their values and type, q8_0 becomes float32. Throws ConfigError when
// `out` exists, DataError naming file and offset, entry or tensor where the
// file is no model that Brigade computes, StorageError.
ImportedModel import_gguf(
    const std::filesystem::path& file,
    const std::filesystem::path& out,
    const ImportProgress& on_progress = {});

}  // namespace brigade
