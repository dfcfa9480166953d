#include "brigade/tokenizer/oniguruma_reader.h"

#include <fmt/format.h>

#include <cctype>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/json_parts.h"

namespace brigade {
namespace {

int digit_value(char32_t c, int base) {
  int value = base;
  if (c >= '0' && c <= '9')
    value = static_cast<int>(c - '0');
  else if (c >= 'a' && c <= 'f')
    value = static_cast<int>(c - 'a') + 10;
  else if (c >= 'A' && c <= 'F')
    value = static_cast<int>(c - 'A') + 10;
  return value < base ? value : -1;
}

}  // namespace

bool PatternReader::take(std::string_view text) {
  if (!sees(text))
    return false;
  at_ += text.size();
  return true;
}

char32_t PatternReader::peek() const {
  return done() ? U'\0' : utf8_code_point(pattern_, at_);
}

char32_t PatternReader::next() {
  if (done())
    fail("ends too early");
  const char32_t c = utf8_code_point(pattern_, at_);
  at_ += utf8_length(pattern_[at_]);
  return c;
}

std::string_view PatternReader::until(std::string_view end) {
  const size_t found = pattern_.find(end, at_);
  if (found == std::string_view::npos)
    fail(fmt::format("lacks a \"{}\"", end));
  const std::string_view text = pattern_.substr(at_, found - at_);
  at_ = found + end.size();
  return text;
}

std::optional<int> PatternReader::number() {
  constexpr int kMost = 100'000;  // Oniguruma's
  if (digit_value(peek(), 10) < 0)
    return std::nullopt;
  int value = 0;
  while (digit_value(peek(), 10) >= 0) {
    value = 10 * value + digit_value(next(), 10);
    if (value > kMost)
      fail(fmt::format("holds a number above {}", kMost));
  }
  return value;
}

bool PatternReader::has_later(char c) const {
  for (size_t at = at_; at < pattern_.size(); ++at) {
    if (pattern_[at] == '\\')
      ++at;
    else if (pattern_[at] == c)
      return true;
  }
  return false;
}

char32_t PatternReader::digits(int base, int least, int most) {
  char32_t value = 0;
  int count = 0;
  while (count < most && !done() && digit_value(peek(), base) >= 0) {
    value = value * static_cast<char32_t>(base) +
            static_cast<char32_t>(digit_value(next(), base));
    if (value > 0x10FFFF)
      fail("names a character above U+10FFFF");
    ++count;
  }
  if (count < least)
    fail("has an escape with too few digits");
  return value;
}

char32_t PatternReader::code_point_in_braces(int base) {
  const char32_t value = digits(base, 1, 11);
  if (sees(" "))
    refuse("a list of characters in one \\x{...}");
  if (!take("}"))
    fail("has an escape whose { is not closed");
  return value;
}

// A value below 0x80 is a character; above, one byte of one in UTF-8.
char32_t PatternReader::byte_value(char32_t value) const {
  if (value >= 0x80)
    refuse("a byte above 0x7F as \\x or octal number (write \\x{...})");
  return value;
}

char32_t PatternReader::escaped_character() {
  if (take("x{"))
    return code_point_in_braces(16);
  if (take("o{"))
    return code_point_in_braces(8);
  const size_t begin = at_;
  const char32_t c = next();
  switch (c) {
    case 'x':
      return byte_value(digits(16, 0, 2));
    case 'u':
      return digits(16, 4, 4);
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
      at_ = begin;
      return byte_value(digits(8, 1, 3));
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'a':
      return '\a';
    case 'e':
      return 0x1B;
    case 'C':
      if (!take("-"))
        fail("has \\C without -");
      [[fallthrough]];
    case 'c': {
      const char32_t control = next();
      if (control < 'A' || control > 'z' || control == '\\')
        refuse("a control character that is not named by a letter");
      return control & 0x1F;
    }
    case 'M':
      refuse("\\M");
    default:
      return c;
  }
}

void PatternReader::fail(std::string_view what) const {
  place_.fail(fmt::format("the regular expression {} {}", pattern_, what));
}

void PatternReader::refuse(std::string_view what) const {
  brigade::refuse(
      place_, fmt::format("{} in the regular expression {}", what, pattern_));
}

std::string literal(char32_t c) {
  std::string text;
  if (c >= 0x80) {
    append_utf8(text, c);
    return text;
  }
  if (c < 0x20 || c == 0x7F)
    return fmt::format("\\x{:02X}", static_cast<unsigned>(c));
  const auto ascii = static_cast<char>(c);
  static constexpr std::string_view kPlain = " '\"!%,/:;<>=@_`~";
  const bool is_plain = std::isalnum(static_cast<unsigned char>(ascii)) != 0 ||
                        kPlain.find(ascii) != std::string_view::npos;
  if (!is_plain)
    text += '\\';
  return text += ascii;
}

}  // namespace brigade
