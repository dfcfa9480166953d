// The parser's place in the tokens of a template.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "brigade/chat/lexer.h"

namespace brigade::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next() {
    Token token = peek();
    if (token.is(TokenKind::kName, "loop"))
      ++loop_names_;
    if (at_ + 1 < tokens_.size())
      ++at_;
    return token;
  }
  bool is_operator(std::string_view text) const {
    return peek().is(TokenKind::kOperator, text);
  }
  bool is_name(std::string_view text) const {
    return peek().is(TokenKind::kName, text);
  }
  bool take_operator(std::string_view text) {
    const bool found = is_operator(text);
    if (found)
      next();
    return found;
  }
  bool take_name(std::string_view text) {
    const bool found = is_name(text);
    if (found)
      next();
    return found;
  }
  void expect_operator(std::string_view text) {
    if (!take_operator(text))
      fail(fmt::format("expected '{}' before {}", text, shown()));
  }
  void expect_name(std::string_view text) {
    if (!take_name(text))
      fail(fmt::format("expected '{}' before {}", text, shown()));
  }
  std::string expect_name() {
    if (peek().kind != TokenKind::kName)
      fail(fmt::format("expected a name before {}", shown()));
    return next().text;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (peek().kind != kind)
      fail(fmt::format("expected {} before {}", what, shown()));
    next();
  }

  // How often the name `loop` was taken so far.
  int loop_names() const { return loop_names_; }
  int line() const { return peek().line; }
  // The next token, as messages name it.
  std::string shown() const {
    switch (peek().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kPrintEnd:
        return "'}}'";
      case TokenKind::kStatementEnd:
        return "'%}'";
      default:
        return fmt::format("'{}'", peek().text);
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    fail_at_line(name_, line(), what);
  }

 private:
  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int loop_names_ = 0;
};

}  // namespace brigade::jinja
