// model.safetensors.index.json on arbitrary bytes: a DataError, or the
// weight_map of nlohmann-json's tree, with files in the index's folder or
// below.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "brigade/base/error.h"
#include "brigade/safetensors/folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  brigade::WeightMap map;
  try {
    map = brigade::parse_weight_map(text, "fuzz");
  } catch (const brigade::DataError&) {
    return 0;
  }
  const auto json = nlohmann::json::parse(text);
  if (json.at("weight_map").size() != map.size())
    std::abort();
  for (const auto& [name, file] : map) {
    const auto path = std::filesystem::path(file).lexically_normal();
    const bool is_below =
        path.is_relative() && !path.empty() && *path.begin() != "..";
    if (json["weight_map"].at(name) != file || !is_below)
      std::abort();
  }
  return 0;
}
