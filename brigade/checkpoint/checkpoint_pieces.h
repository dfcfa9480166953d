// What saving and loading share of a checkpoint's format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "brigade/checkpoint/checkpoint.h"

namespace brigade {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kManifestFormat = "brigade checkpoint";
inline constexpr int kManifestVersion = 1;
// In a file's __metadata__: {"NAME": [dim, begin, end]} of the tensors that
// are pieces of a larger one.
inline constexpr const char* kPiecesKey = "brigade.pieces";

nlohmann::json manifest_to_json(const CheckpointManifest& manifest);
// Throws DataError naming the file and the key.
CheckpointManifest manifest_from_json(
    const nlohmann::json& json,
    const std::string& file);

}  // namespace brigade
