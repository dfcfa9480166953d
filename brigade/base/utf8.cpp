#include "brigade/base/utf8.h"

#include <fmt/format.h>

#include <cstring>

#include "brigade/base/error.h"

namespace brigade {
namespace {

size_t skip_ascii(std::string_view text, size_t offset) {
  while (offset + 8 <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + offset, 8);
    if (word & 0x8080808080808080ULL)
      break;
    offset += 8;
  }
  while (offset < text.size() && static_cast<signed char>(text[offset]) >= 0)
    ++offset;
  return offset;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t offset = 0;
  while (true) {
    offset = skip_ascii(text, offset);
    if (offset == text.size())
      return offset;
    const Utf8Step next = utf8_step(text, offset);
    if (!next.valid)
      return offset;
    offset += next.length;
  }
}

void require_utf8(std::string_view text) {
  const size_t offset = valid_utf8_prefix(text);
  if (offset == text.size())
    return;
  throw DataError(fmt::format(
      "[tokenizer] the text is not UTF-8: byte 0x{:02X} at offset {} of {}; "
      "convert the text to UTF-8 first",
      static_cast<unsigned char>(text[offset]),
      offset,
      text.size()));
}

std::string to_valid_utf8(std::string text) {
  size_t offset = valid_utf8_prefix(text);
  if (offset == text.size())
    return text;
  std::string out = text.substr(0, offset);
  while (offset < text.size()) {
    const Utf8Step next = utf8_step(text, offset);
    if (next.valid)
      out.append(text, offset, next.length);
    else
      out += kReplacementCharacter;
    offset += next.length;
  }
  return out;
}

char32_t utf8_code_point(std::string_view text, size_t offset) {
  const auto at = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[offset + i]));
  };
  switch (utf8_length(text[offset])) {
    case 1:
      return at(0);
    case 2:
      return (at(0) & 0x1F) << 6 | (at(1) & 0x3F);
    case 3:
      return (at(0) & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    default:
      return (at(0) & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 |
             (at(3) & 0x3F);
  }
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto push = [&](char32_t byte) {
    out.push_back(static_cast<char>(byte));
  };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

}  // namespace brigade
