// UTF-8: checked once at the border, trusted inside.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace brigade {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The length in bytes of the valid prefix of `text` (overlong forms,
// surrogates and code points past U+10FFFF are invalid).
size_t valid_utf8_prefix(std::string_view text);

// Throws DataError naming the offset of the first byte that is not UTF-8.
void require_utf8(std::string_view text);

// Every maximal ill-formed part becomes one U+FFFD: the practice recommended
// by the Unicode standard (section 3.9) and Rust's from_utf8_lossy.
std::string to_valid_utf8(std::string text);

// The bytes of the character that starts with `lead`, which must be a lead
// byte of valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline bool is_utf8_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// The characters of valid UTF-8.
inline size_t count_characters(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(
                           text.begin(), text.end(), is_utf8_continuation));
}

// The start of the character that ends before `at`, which is above 0, in valid
// UTF-8.
inline size_t utf8_character_before(std::string_view text, size_t at) {
  do
    --at;
  while (is_utf8_continuation(text[at]));
  return at;
}

// What stands at text[offset], which may be any byte: how many bytes to step
// over, and whether they are a character. Table 3-7 of the Unicode standard.
struct Utf8Step {
  size_t length = 1;
  bool valid = false;
};

inline Utf8Step utf8_step(std::string_view text, size_t offset) {
  const auto at = [&](size_t i) {
    return static_cast<unsigned char>(text[offset + i]);
  };
  const unsigned char lead = at(0);
  if (lead < 0x80)
    return {.length = 1, .valid = true};
  if (lead < 0xC2 || lead > 0xF4)
    return {.length = 1, .valid = false};
  const size_t length = utf8_length(text[offset]);
  // The range of the second byte.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (offset + i >= text.size() || at(i) < low || at(i) > high)
      return {.length = i, .valid = false};
    low = 0x80;
    high = 0xBF;
  }
  return {.length = length, .valid = true};
}

// The code point at text[offset], which must start a valid character.
char32_t utf8_code_point(std::string_view text, size_t offset);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace brigade
