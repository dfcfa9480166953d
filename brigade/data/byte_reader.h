// Numbers out of a file's bytes: each read is checked against the end and an
// error names the file, the offset and what should have been there.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {

// Element `index` of an array of T that may be unaligned; the caller has
// checked the array's size.
template <typename T>
T load_at(std::span<const std::byte> array, uint64_t index) {
  BRIGADE_ASSERT(
      index < array.size() / sizeof(T),
      "element {} of {} bytes",
      index,
      array.size());
  T value;
  std::memcpy(&value, array.data() + index * sizeof(T), sizeof(T));
  return value;
}

class ByteReader {
 public:
  ByteReader(std::string name, std::span<const std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  // The next size_bytes bytes; DataError if the file ends before.
  std::span<const std::byte> take(uint64_t size_bytes, std::string_view what) {
    if (size_bytes > remaining()) {
      throw DataError(fmt::format(
          "[{}] at byte {}: {} takes {} bytes, but only {} are left",
          name_,
          offset_,
          what,
          size_bytes,
          remaining()));
    }
    const auto result = bytes_.subspan(offset_, size_bytes);
    offset_ += size_bytes;
    return result;
  }

  template <typename T>
  T number(std::string_view what) {
    return load_at<T>(take(sizeof(T), what), 0);
  }

  // Throws DataError about the byte at `at`.
  template <typename... Args>
  [[noreturn]] void
  fail(uint64_t at, fmt::format_string<Args...> format, Args&&... args) const {
    throw DataError(fmt::format(
        "[{}] at byte {}: {}",
        name_,
        at,
        fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
  uint64_t offset_ = 0;
};

}  // namespace brigade
