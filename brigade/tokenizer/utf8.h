// UTF-8 as the tokenizers need it: checked once at the border, trusted inside.
#pragma once

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

// The code point at text[offset], which must start a valid character.
char32_t utf8_code_point(std::string_view text, size_t offset);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace brigade
