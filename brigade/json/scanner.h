// Takes JSON text apart token by token, without allocating: for formats that a
// caller knows exactly (objects, arrays, strings, unsigned integers), such as a
// safetensors header of up to 100 MB, of which nothing is built. Strings are
// views of the text.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "brigade/json/string_literal.h"

namespace brigade {

// How errors begin and where they count from.
struct JsonScannerSource {
  std::string introduction;        // "[safetensors] 'model.safetensors'"
  std::string what;                // "the header"
  uint64_t base_offset_bytes = 0;  // in the file, of the text's first byte
};

class JsonScanner {
 public:
  // Both must outlive the scanner.
  JsonScanner(std::string_view text, const JsonScannerSource& source)
      : text_(text), source_(source) {}

  // Each skips white space first and throws DataError unless it finds what it
  // is asked for.
  void expect(char wanted);
  JsonStringLiteral string();  // checked, not decoded
  uint64_t unsigned_integer();
  void expect_end();

  // True, and past it, when `wanted` comes next.
  bool accept(char wanted);
  bool accept_null();
  // After an item of a list: true on ',', false (and past it) on `close`.
  bool another_item(char close);

  size_t position() const { return position_; }
  std::string_view text_from(size_t start) const {
    return text_.substr(start, position_ - start);
  }
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  std::string_view text_;
  const JsonScannerSource& source_;
  size_t position_ = 0;

  void skip_white_space();
};

}  // namespace brigade
