// Safetensors files made by hand, for the tests.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace brigade {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        std::filesystem::temp_directory_path() / "brigade_test_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

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
