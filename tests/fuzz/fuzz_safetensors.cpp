// The safetensors reader on arbitrary bytes: it accepts or throws DataError,
// and what it accepts obeys the format as nlohmann-json reads it.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "brigade/base/error.h"
#include "brigade/safetensors/header.h"

namespace {

void require(bool holds) {
  if (!holds)
    std::abort();
}

void check_accepted(
    std::span<const std::byte> file,
    const brigade::SafetensorsHeader& header) {
  const auto json = nlohmann::json::parse(std::string(
      reinterpret_cast<const char*>(file.data()) + 8,
      header.data_offset_bytes - 8));
  uint64_t end = 0;
  for (const auto& entry : header.entries) {
    const auto& info = json.at(std::string(entry.name));
    uint64_t bits = brigade::item_bits(entry.dtype);
    for (const uint64_t dim :
         brigade::parse_safetensors_shape(entry.shape_text))
      bits *= dim;
    require(info.at("dtype") == std::string(brigade::name_of(entry.dtype)));
    require(
        info.at("shape") == brigade::parse_safetensors_shape(entry.shape_text));
    require(info.at("data_offsets").at(0) == entry.begin_bytes);
    require(info.at("data_offsets").at(1) == entry.end_bytes);
    require(entry.begin_bytes == end && 8 * (entry.end_bytes - end) == bits);
    end = entry.end_bytes;
  }
  require(header.data_offset_bytes + end == file.size());
  const bool has_metadata = json.contains("__metadata__");
  require(json.size() == header.entries.size() + (has_metadata ? 1 : 0));
  std::map<std::string, std::string> metadata;
  for (auto& [key, value] :
       brigade::parse_safetensors_metadata(header.metadata_text))
    metadata[key] = value;
  require(!has_metadata || json["__metadata__"] == metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  brigade::SafetensorsHeader header;
  try {
    header = brigade::parse_safetensors_header(file, "fuzz");
  } catch (const brigade::DataError&) {
    return 0;
  }
  check_accepted(file, header);
  return 0;
}
