#include "brigade/checkpoint/checkpoint_pieces.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

nlohmann::json manifest_to_json(const CheckpointManifest& manifest) {
  return {
      {"format", kManifestFormat},
      {"version", kManifestVersion},
      {"step", manifest.step},
      {"tokens", manifest.tokens},
      {"dtype", manifest.dtype},
      {"tokenizer", manifest.tokenizer},
      {"writers", manifest.writers},
      {"files", manifest.files},
      {"model", manifest.model},
      {"model_source", manifest.model_source},
      {"config", manifest.config}};
}

CheckpointManifest manifest_from_json(
    const nlohmann::json& json,
    const std::string& file) {
  try {
    if (json.at("format") != kManifestFormat ||
        json.at("version") != kManifestVersion) {
      throw DataError(fmt::format(
          "[checkpoint] '{}' is not a version {} checkpoint of this program",
          file,
          kManifestVersion));
    }
    CheckpointManifest manifest;
    json.at("step").get_to(manifest.step);
    json.at("tokens").get_to(manifest.tokens);
    json.at("dtype").get_to(manifest.dtype);
    json.at("tokenizer").get_to(manifest.tokenizer);
    json.at("writers").get_to(manifest.writers);
    json.at("files").get_to(manifest.files);
    manifest.model = json.at("model");
    manifest.model_source = json.value("model_source", nlohmann::json());
    manifest.config = json.at("config");
    for (const std::string& name : manifest.files) {
      if (!is_bare_file_name(name)) {
        throw DataError(fmt::format(
            "[checkpoint] '{}' names '{}', which is outside its folder",
            file,
            name));
      }
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        fmt::format("[checkpoint] '{}' is damaged: {}", file, error.what()));
  }
}

}  // namespace brigade
