#include "brigade/safetensors/scanner.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"

namespace brigade {
namespace {

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
         (c >= 'A' && c <= 'F');
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string describe(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte > 0x20 && byte < 0x7f ? fmt::format("'{}'", c)
                                    : fmt::format("byte 0x{:02x}", byte);
}

// The code unit of "\uXXXX" at `position`, which holds four checked digits.
unsigned code_unit(std::string_view text, size_t position) {
  return static_cast<unsigned>(
      std::stoul(std::string(text.substr(position + 2, 4)), nullptr, 16));
}

}  // namespace

void SafetensorsScanner::fail(const std::string& problem) const {
  throw DataError(fmt::format(
      "[safetensors] '{}': {} (at byte {})",
      file_name_,
      problem,
      base_offset_bytes_ + position_));
}

void SafetensorsScanner::skip_white_space() {
  while (position_ < text_.size() &&
         std::string_view(" \t\r\n").find(text_[position_]) !=
             std::string_view::npos)
    ++position_;
}

bool SafetensorsScanner::accept(char wanted) {
  skip_white_space();
  if (position_ == text_.size() || text_[position_] != wanted)
    return false;
  ++position_;
  return true;
}

void SafetensorsScanner::expect(char wanted) {
  if (accept(wanted))
    return;
  if (position_ == text_.size())
    fail(fmt::format("the header ends where '{}' should come", wanted));
  fail(fmt::format(
      "the header holds {} where '{}' should come",
      describe(text_[position_]),
      wanted));
}

bool SafetensorsScanner::another_item(char close) {
  if (accept(','))
    return true;
  expect(close);
  return false;
}

void SafetensorsScanner::expect_end() {
  skip_white_space();
  if (position_ != text_.size()) {
    fail(fmt::format(
        "the header holds {} after its object", describe(text_[position_])));
  }
}

uint64_t SafetensorsScanner::unsigned_integer() {
  skip_white_space();
  if (!is_digit(peek()))
    fail("an unsigned integer is missing");
  const size_t start = position_;
  uint64_t value = 0;
  for (; is_digit(peek()); ++position_) {
    const auto digit = static_cast<uint64_t>(peek() - '0');
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, digit, &value)) {
      position_ = start;
      fail("an integer is above 2^64 - 1");
    }
  }
  const bool leading_zero = text_[start] == '0' && position_ > start + 1;
  if (leading_zero || peek() == '.' || peek() == 'e' || peek() == 'E') {
    position_ = start;
    fail("a number is not a plain unsigned integer");
  }
  return value;
}

SafetensorsScanner::Literal SafetensorsScanner::string() {
  expect('"');
  Literal literal;
  const size_t start = position_;
  while (true) {
    if (position_ == text_.size())
      fail("a string has no end");
    const auto byte = static_cast<unsigned char>(text_[position_]);
    if (byte == '"')
      break;
    if (byte == '\\') {
      literal.has_escapes = true;
      skip_escape();
    } else if (byte < 0x20) {
      fail(fmt::format("a string holds the control byte 0x{:02x}", byte));
    } else if (byte < 0x80) {
      ++position_;
    } else {
      skip_utf8_sequence();
    }
  }
  literal.raw = text_.substr(start, position_ - start);
  ++position_;
  return literal;
}

void SafetensorsScanner::skip_escape() {
  const auto is_unit = [&](size_t at) {
    if (text_.substr(at, 2) != "\\u" || text_.size() < at + 6)
      return false;
    for (size_t i = at + 2; i < at + 6; ++i) {
      if (!is_hex_digit(text_[i]))
        return false;
    }
    return true;
  };
  if (position_ + 1 < text_.size() && text_[position_ + 1] != 'u') {
    if (std::string_view("\"\\/bfnrt").find(text_[position_ + 1]) ==
        std::string_view::npos)
      fail("a string holds an unknown escape");
    position_ += 2;
    return;
  }
  if (!is_unit(position_))
    fail("a string holds a \\u without four hex digits");
  const unsigned unit = code_unit(text_, position_);
  if (unit < 0xd800 || unit > 0xdfff) {
    position_ += 6;
    return;
  }
  // A high surrogate, which a low one must follow.
  const size_t next = position_ + 6;
  const bool is_pair = unit < 0xdc00 && is_unit(next) &&
                       code_unit(text_, next) >= 0xdc00 &&
                       code_unit(text_, next) <= 0xdfff;
  if (!is_pair)
    fail("a string holds half of a surrogate pair");
  position_ += 12;
}

// Well-formed sequences only: Unicode 15, table 3-7.
void SafetensorsScanner::skip_utf8_sequence() {
  const auto at = [&](size_t i) -> unsigned {
    const size_t index = position_ + i;
    return index < text_.size() ? static_cast<unsigned char>(text_[index]) : 0;
  };
  const unsigned first = at(0);
  size_t length = 0;
  unsigned low = 0x80, high = 0xbf;  // of the second byte
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    low = first == 0xe0 ? 0xa0 : 0x80;
    high = first == 0xed ? 0x9f : 0xbf;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    low = first == 0xf0 ? 0x90 : 0x80;
    high = first == 0xf4 ? 0x8f : 0xbf;
  }
  bool valid = length > 0 && at(1) >= low && at(1) <= high;
  for (size_t i = 2; i < length; ++i)
    valid = valid && (at(i) & 0xc0) == 0x80;
  if (!valid)
    fail("the header is not valid UTF-8");
  position_ += length;
}

std::string shown(std::string_view name) {
  constexpr size_t kMaxShown = 200;
  std::string text;
  for (const char c : name.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte)
                                        : std::string(1, c);
  }
  return name.size() > kMaxShown ? text + "..." : text;
}

std::string decode(const SafetensorsScanner::Literal& literal) {
  if (!literal.has_escapes)
    return std::string(literal.raw);
  return nlohmann::json::parse(fmt::format("\"{}\"", literal.raw))
      .get<std::string>();
}

}  // namespace brigade
