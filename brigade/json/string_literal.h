// JSON string literals in a text: where they end, and what is wrong with them.
//
// PURE.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace brigade {

struct JsonStringProblem {
  std::string problem;
  size_t offset = 0;  // of the byte in the text
};

struct JsonStringLiteral {
  // Between the quotes, as it stands in the text.
  std::string_view raw;
  bool has_escapes = false;
};

// Reads the literal whose opening quote is at `begin`. Checks escapes and UTF-8
// without decoding or allocating. Returns std::nullopt and fills `problem` when
// the literal is wrong.
std::optional<JsonStringLiteral> read_string_literal(
    std::string_view text,
    size_t begin,
    JsonStringProblem& problem);

// What is wrong with the literal at `begin`; std::nullopt: nothing.
std::optional<JsonStringProblem> check_string_literal(
    std::string_view text,
    size_t begin);

// The text that a literal stands for.
std::string decode(const JsonStringLiteral& literal);

// Text as messages show it: control bytes as \x01, at most 200 bytes (hostile
// names can have 100 MB).
std::string shown_text(std::string_view text);

// What stands at `begin` as messages show it: 'tru', '}', a string, byte 0x01.
std::string shown_word(std::string_view text, size_t begin);

}  // namespace brigade
