// A whole model as one GGUF file, which llama.cpp and what builds on it load.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/gguf/format.h"
#include "brigade/gguf/tokenizer_entries.h"
#include "brigade/model_spec/decoder_config.h"

namespace brigade {

struct GgufModel {
  DecoderConfig config;
  std::string name;  // general.name
  // The type of the matrices. Norms, biases, routers and rope_freqs are float32
  // in any case.
  GgufType type = GgufType::kF32;
  TokenizerEntries tokenizer;
  // All values of the parameter of that name, row-major. Called once for each,
  // unit by unit, of a layer's experts first all gates, then all ups, then all
  // downs: a tensor of the file at a time is in memory.
  std::function<std::vector<float>(const std::string& name)> read;
};

// Throws ConfigError that names everything which llama.cpp does not compute, or
// the first matrix whose rows are not of whole blocks of the type.
void require_gguf(const DecoderConfig& config, GgufType type);

// Calls require_gguf() first. Throws DataError naming a tensor that has another
// number of values or one too large for the type, StorageError.
void write_gguf_model(
    const std::filesystem::path& path,
    const GgufModel& model);

}  // namespace brigade
