#include "brigade/json/string_literal.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/base/utf8.h"

namespace brigade {
namespace {

bool is_hex_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') ||
         (c >= 'A' && c <= 'F');
}

bool is_code_unit(std::string_view text, size_t at) {
  if (text.substr(at, 2) != "\\u" || text.size() < at + 6)
    return false;
  for (size_t i = at + 2; i < at + 6; ++i) {
    if (!is_hex_digit(text[i]))
      return false;
  }
  return true;
}

// The code unit of "\uXXXX" at `position`, which holds four checked digits.
unsigned code_unit(std::string_view text, size_t position) {
  return static_cast<unsigned>(
      std::stoul(std::string(text.substr(position + 2, 4)), nullptr, 16));
}

// The length of the escape at `at`; 0 and `problem` when it is wrong.
size_t escape_length(std::string_view text, size_t at, std::string& problem) {
  if (at + 1 < text.size() && text[at + 1] != 'u') {
    if (std::string_view("\"\\/bfnrt").find(text[at + 1]) !=
        std::string_view::npos)
      return 2;
    problem = "a string holds an unknown escape";
    return 0;
  }
  if (!is_code_unit(text, at)) {
    problem = "a string holds a \\u without four hex digits";
    return 0;
  }
  const unsigned unit = code_unit(text, at);
  if (unit < 0xd800 || unit > 0xdfff)
    return 6;
  // A high surrogate, which a low one must follow.
  const size_t next = at + 6;
  const bool is_pair = unit < 0xdc00 && is_code_unit(text, next) &&
                       code_unit(text, next) >= 0xdc00 &&
                       code_unit(text, next) <= 0xdfff;
  if (is_pair)
    return 12;
  problem = "a string holds half of a surrogate pair";
  return 0;
}

}  // namespace

std::optional<JsonStringLiteral> read_string_literal(
    std::string_view text,
    size_t begin,
    JsonStringProblem& problem) {
  JsonStringLiteral literal;
  size_t position = begin + 1;
  while (true) {
    problem.offset = position;
    if (position >= text.size()) {
      problem.problem = "a string has no end";
      return std::nullopt;
    }
    const auto byte = static_cast<unsigned char>(text[position]);
    size_t length = 1;
    if (byte == '"')
      break;
    if (byte == '\\') {
      literal.has_escapes = true;
      length = escape_length(text, position, problem.problem);
    } else if (byte < 0x20) {
      problem.problem =
          fmt::format("a string holds the control byte 0x{:02x}", byte);
      return std::nullopt;
    } else if (byte >= 0x80) {
      const Utf8Step step = utf8_step(text, position);
      length = step.valid ? step.length : 0;
      if (!step.valid)
        problem.problem = fmt::format(
            "a string holds byte 0x{:02x}, which is not UTF-8", byte);
    }
    if (length == 0)
      return std::nullopt;
    position += length;
  }
  literal.raw = text.substr(begin + 1, position - begin - 1);
  return literal;
}

std::optional<JsonStringProblem> check_string_literal(
    std::string_view text,
    size_t begin) {
  JsonStringProblem problem;
  if (read_string_literal(text, begin, problem))
    return std::nullopt;
  return problem;
}

std::string decode(const JsonStringLiteral& literal) {
  if (!literal.has_escapes)
    return std::string(literal.raw);
  return nlohmann::json::parse(fmt::format("\"{}\"", literal.raw))
      .get<std::string>();
}

std::string shown_text(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  std::string result;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte)
                                          : std::string(1, c);
  }
  return text.size() > kMaxShown ? result + "..." : result;
}

std::string shown_word(std::string_view text, size_t begin) {
  constexpr size_t kMaxShown = 20;
  const auto byte = static_cast<unsigned char>(text[begin]);
  if (byte == '"')
    return "a string";
  if (byte <= 0x20 || byte >= 0x7f)
    return fmt::format("byte 0x{:02x}", byte);
  constexpr std::string_view kEnd = " \t\r\n,:[]{}\"";
  const size_t end = text.find_first_of(kEnd, begin + 1);
  const bool is_sign = kEnd.find(text[begin]) != std::string_view::npos;
  const std::string_view word =
      text.substr(begin, is_sign ? 1 : std::min(end, text.size()) - begin);
  for (const char c : word) {
    const auto letter = static_cast<unsigned char>(c);
    if (letter < 0x20 || letter >= 0x7f)
      return fmt::format("'{}'", text[begin]);
  }
  return word.size() > kMaxShown
             ? fmt::format("'{}...'", word.substr(0, kMaxShown))
             : fmt::format("'{}'", word);
}

}  // namespace brigade
