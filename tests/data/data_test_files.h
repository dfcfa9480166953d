// A folder for one test, and token files built byte by byte from the formats'
// descriptions, not by the code under test.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {

class DataTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view content)
      const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  const TemporaryFolder folder_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

template <typename T>
std::string le_bytes(const std::vector<T>& values) {
  std::string result(values.size() * sizeof(T), '\0');
  std::memcpy(result.data(), values.data(), result.size());
  return result;
}

inline std::string from_hex(std::string_view hex) {
  std::string result;
  std::string digits;
  for (const char c : hex) {
    if (c == ' ')
      continue;
    digits += c;
    if (digits.size() == 2) {
      result += static_cast<char>(std::stoi(digits, nullptr, 16));
      digits.clear();
    }
  }
  return result;
}

inline std::string gzipped(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string result(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

inline std::string zstandard(const std::string& text) {
  std::string result(ZSTD_compressBound(text.size()), '\0');
  result.resize(
      ZSTD_compress(result.data(), result.size(), text.data(), text.size(), 3));
  return result;
}

// Megatron's .idx of the documents [1,2,3] and [4,5] as uint16.
inline std::string golden_index() {
  return from_hex(
      "4d4d4944494458 0000 0100000000000000 08 0200000000000000 "
      "0300000000000000 03000000 02000000 0000000000000000 0600000000000000 "
      "0000000000000000 0100000000000000 0200000000000000");
}
inline std::string golden_tokens() {
  return le_bytes<uint16_t>({1, 2, 3, 4, 5});
}

}  // namespace brigade
