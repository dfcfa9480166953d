// Writing a model as the folder that transformers, vLLM and llama.cpp load:
// config.json, generation_config.json, tokenizer files and safetensors.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/checkpoint/hugging_face.h"
#include "brigade/options/expert_tensors.h"
#include "brigade/run/tokenizer_files.h"
#include "brigade/safetensors/dtype.h"

namespace brigade {

inline constexpr uint64_t kDefaultShardBytes = 5'000'000'000;

struct HuggingFaceExport {
  std::filesystem::path out;          // must not exist, or be an empty folder
  nlohmann::json config;              // config.json, to_hugging_face_json()
  std::vector<ParameterRow> tensors;  // the whole model
  SafetensorsDtype dtype = SafetensorsDtype::kF32;   // of all of them
  ExpertTensors experts = ExpertTensors::kSeparate;  // how they are written
  // The whole tensor of that name, in `dtype`, on the CPU. Called once for
  // each, so that one tensor of the folder and one of these are in memory.
  std::function<torch::Tensor(const std::string& name)> read;
  // Tokenizer files, and a generation_config.json where the model came with
  // one: else it is made of `config`.
  std::vector<FileToCopy> files;
  // Name -> content, where `files` has no file of that name.
  std::map<std::string, std::string> texts;
  // Above this, the weights are written as several files and an index, as
  // save_pretrained() does.
  uint64_t max_shard_bytes = kDefaultShardBytes;
};

// The generation_config.json of a model without one: what generate() of
// transformers needs to know when to stop.
nlohmann::json generation_config(const nlohmann::json& config);

// Throws ConfigError when `out` holds something.
void check_free(const std::filesystem::path& out);

// Writes beside `out` and renames at the end: `out` is whole or absent. Throws
// ConfigError when `out` holds something, DataError naming a tensor that is not
// of its shape and dtype, StorageError when the disk refuses.
void export_hugging_face(const HuggingFaceExport& request);

inline constexpr const char* kGenerationConfig = "generation_config.json";

}  // namespace brigade
