// Safetensors files made by hand, for the tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace brigade {

inline void write_bytes(
    const std::filesystem::path& path,
    const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string little_endian(uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A file with the given header, its true length before it, and data.
inline std::string raw_safetensors(
    const std::string& header,
    const std::string& data) {
  return little_endian(header.size()) + header + data;
}

}  // namespace brigade
