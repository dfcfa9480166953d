// The header of a safetensors file, read without ever building it as a JSON
// tree: a hostile header of 100 MB must not cost more than itself plus 16 MB,
// and a tree costs ten times its text. Private to brigade/checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/safetensors/dtype.h"

namespace brigade {

// The limits of the format, and ours, which keep the tables small.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxSafetensorsTensors = size_t{1} << 17;
inline constexpr size_t kMaxSafetensorsRank = 64;
// The key of the pairs of strings, which no tensor can have as its name.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

struct SafetensorsEntry {
  std::string_view name;        // decoded
  std::string_view shape_text;  // "[2,3]", checked
  uint64_t begin_bytes;         // from the start of the data
  uint64_t end_bytes;
  SafetensorsDtype dtype;
};

// Views point into the file's bytes (and into decoded_names): it lives no
// longer than the mapping.
struct SafetensorsHeader {
  uint64_t data_offset_bytes = 0;         // 8 + N
  std::vector<SafetensorsEntry> entries;  // in the order of the data
  std::string_view metadata_text;         // "{...}" or empty
  std::deque<std::string> decoded_names;  // the names written with escapes
};

// Validates the whole file as the format demands: no hole, no overlap, every
// size overflow-checked and right, no name twice, no byte after the last
// tensor. Throws DataError with the file, the tensor and the offset in bytes.
SafetensorsHeader parse_safetensors_header(
    std::span<const std::byte> file,
    const std::string& file_name);

// The dims of a checked shape_text.
std::vector<uint64_t> parse_safetensors_shape(std::string_view shape_text);

// The pairs of a checked metadata_text, in the file's order.
std::vector<std::pair<std::string, std::string>> parse_safetensors_metadata(
    std::string_view metadata_text);

}  // namespace brigade
