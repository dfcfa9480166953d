// From a checkpoint of a run to a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace brigade {

struct ExportedModel {
  int64_t parameters = 0;
  int64_t step = 0;
  std::string dtype;
  std::string tokenizer;  // the manifest's; empty: none was written
  bool has_tokenizer = false;
};

// Writes `out` (hugging_face_export.h) from a checkpoint, a folder of them or a
// run folder. Every tensor has the bytes that the checkpoint holds; config.json
// keeps the keys of the config that the model came with; its
// generation_config.json and tokenizer files come along. Throws DataError when
// the checkpoint holds no such model, and what export_hugging_face() throws.
ExportedModel export_checkpoint(
    const std::filesystem::path& checkpoint,
    const std::filesystem::path& out,
    uint64_t max_shard_bytes);

}  // namespace brigade
