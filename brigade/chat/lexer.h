// A template's text to tokens, with Jinja's rules of white space: trim_blocks
// and lstrip_blocks are on, as transformers has them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade::jinja {

enum class TokenKind {
  kData,            // text to print as it is
  kPrintBegin,      // {{
  kPrintEnd,        // }}
  kStatementBegin,  // {%
  kStatementEnd,    // %}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // a string's is its value
  int line = 1;

  bool is(TokenKind other, std::string_view value) const {
    return kind == other && text == value;
  }
};

// The last one is kEnd. Throws DataError, naming `name` and the line, for text
// that is no template.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

// Throws DataError: "[chat] NAME:LINE: what".
[[noreturn]] void
fail_at_line(const std::string& name, int line, const std::string& what);

}  // namespace brigade::jinja
