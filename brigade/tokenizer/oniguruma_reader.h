// What the parsers of Oniguruma's patterns read with: one character or escape
// after the other. Private to oniguruma*.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "brigade/json/node.h"

namespace brigade {

class PatternReader {
 public:
  // `pattern` is valid UTF-8, and outlives the reader.
  PatternReader(std::string_view pattern, const JsonNode& place)
      : pattern_(pattern), place_(place) {}

  bool done() const { return at_ >= pattern_.size(); }
  bool sees(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  // Whether `text` came next; then it is behind now.
  bool take(std::string_view text);
  char32_t peek() const;
  char32_t next();
  // All up to `end`, which is taken too. Fails if it does not come.
  std::string_view until(std::string_view end);
  // A decimal number, if one comes next.
  std::optional<int> number();
  // Whether the character appears further on that is not escaped.
  bool has_later(char c) const;

  size_t position() const { return at_; }
  void return_to(size_t position) { at_ = position; }

  // The escapes that stand for one character, \ and all before it taken:
  // \n, \x41, \u0041, \101, \cA and characters that are themselves.
  char32_t escaped_character();
  // The same within [...], where \b is a backspace.
  char32_t escaped_character_in_class() {
    return take("b") ? U'\b' : escaped_character();
  }

  [[noreturn]] void fail(std::string_view what) const;
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  std::string_view pattern_;
  const JsonNode& place_;
  size_t at_ = 0;

  char32_t digits(int base, int least, int most);
  char32_t code_point_in_braces(int base);
  char32_t byte_value(char32_t value) const;
};

// The character as PCRE2 takes it, in a class or outside.
std::string literal(char32_t c);

}  // namespace brigade
