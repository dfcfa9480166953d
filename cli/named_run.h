// What --run names, without libtorch.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace brigade::cli {

// A Hugging Face folder: config.json and safetensors files, and no run.
bool is_hugging_face(const std::filesystem::path& path);

// The run folder that PATH is, or of the run that wrote the checkpoint. PATH
// itself where it is neither: its reader says what is wrong. Throws ConfigError
// for a Hugging Face folder, which has no run.
std::filesystem::path find_run(const std::filesystem::path& path);

// Hugging Face's config.json of a model, and where it stands, as messages
// begin: "FILE: ", "FILE: /model".
struct NamedModelConfig {
  nlohmann::json config;
  std::string place;
};

// Throws DataError where PATH holds none.
NamedModelConfig read_model_config(const std::filesystem::path& path);

}  // namespace brigade::cli
