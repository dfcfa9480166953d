// Reads the little JSON that a safetensors header needs (objects, strings,
// unsigned integers), without allocating. Private to brigade/checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace brigade {

class SafetensorsScanner {
 public:
  // `base_offset_bytes` is the offset in the file of the first byte of `text`;
  // messages give offsets in the file.
  SafetensorsScanner(
      std::string_view text,
      const std::string& file_name,
      uint64_t base_offset_bytes)
      : text_(text),
        file_name_(file_name),
        base_offset_bytes_(base_offset_bytes) {}

  // A string literal as it stands in the file, between its quotes: escapes and
  // UTF-8 are checked, not decoded.
  struct Literal {
    std::string_view raw;
    bool has_escapes = false;
  };

  // Each skips white space first and throws DataError unless it finds what it
  // is asked for.
  void expect(char wanted);
  Literal string();
  uint64_t unsigned_integer();
  void expect_end();

  // True, and past it, when `wanted` comes next.
  bool accept(char wanted);
  // After an item of a list: true on ',', false (and past it) on `close`.
  bool another_item(char close);

  size_t position() const { return position_; }
  std::string_view text_from(size_t start) const {
    return text_.substr(start, position_ - start);
  }
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  std::string_view text_;
  const std::string& file_name_;
  uint64_t base_offset_bytes_;
  size_t position_ = 0;

  char peek() const {
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  void skip_white_space();
  void skip_escape();
  void skip_utf8_sequence();
};

// A name as messages show it: a hostile one may be 100 MB of control bytes.
std::string shown(std::string_view name);

// The text that a checked literal stands for.
std::string decode(const SafetensorsScanner::Literal& literal);

}  // namespace brigade
