// From a checkpoint of a run to a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace brigade {

struct ExportedModel {
  int64_t parameters = 0;
  int64_t step = 0;
  std::string dtype;
  std::string tokenizer;  // the manifest's; empty: none was written
  bool has_tokenizer = false;
};

struct ExportOptions {
  uint64_t max_shard_bytes = 5'000'000'000;
  // The tokenizer's, for configs that do not say: what ends and begins a text.
  std::optional<int64_t> bos_token_id, eos_token_id;
  // Called while the checkpoint is verified and while its tensors are written.
  std::function<
      void(const char* what, uint64_t done_bytes, uint64_t total_bytes)>
      on_progress;
  // Name in the folder -> content; written where no file has that name.
  std::map<std::string, std::string> more_files;
};

// Writes `out` (hugging_face_export.h) from a checkpoint, a folder of them or a
// run folder. Every tensor has the bytes that the checkpoint holds; config.json
// keeps the keys of the config that the model came with; its
// generation_config.json and tokenizer files come along. Throws DataError when
// the checkpoint holds no such model, and what export_hugging_face() throws.
ExportedModel export_checkpoint(
    const std::filesystem::path& checkpoint,
    const std::filesystem::path& out,
    const ExportOptions& options = {});

}  // namespace brigade
