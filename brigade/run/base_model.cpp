#include "brigade/run/base_model.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/config/keys.h"
#include "brigade/files/fingerprint.h"
#include "brigade/safetensors/folder.h"

namespace brigade {

namespace fs = std::filesystem;

std::string fingerprint_of_weights(const fs::path& folder) {
  const SafetensorsFolder weights(folder);
  std::string text;
  for (const SafetensorsFile& file : weights.files())
    text += fmt::format(
        "{}{}", text.empty() ? "" : " and ", fingerprint_of_file(file.path()));
  return text;
}

void check_base_model(
    const CheckpointManifest& manifest,
    const fs::path& checkpoint) {
  const fs::path base = manifest.base_model;
  if (!is_model_folder(base))
    throw DataError(fmt::format(
        "[adapter] '{}' holds an adapter, and its base model '{}' is not there",
        checkpoint.string(),
        base.string()));
  const auto saved =
      manifest.data.is_object() ? manifest.data.value("base_model", "") : "";
  if (saved.empty())
    return;
  const std::string now = fingerprint_of_weights(base);
  if (now != saved)
    throw DataError(fmt::format(
        "[adapter] '{}' was trained beside other weights than '{}' has now "
        "({} then, {} now): put those back",
        checkpoint.string(),
        base.string(),
        saved,
        now));
}

AdapterOptions adapter_of_run(const CheckpointManifest& manifest) {
  TrainConfig config;
  if (!read_saved_group(manifest.config, "adapter", config) ||
      !config.adapter.is_used())
    throw DataError(
        "[adapter] the manifest names a base model, but its config has no "
        "adapter");
  return config.adapter;
}

}  // namespace brigade
