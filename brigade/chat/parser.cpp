#include "brigade/chat/parser.h"

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "brigade/chat/parse_expression.h"
#include "brigade/chat/token_stream.h"

namespace brigade::jinja {
namespace {

using Block = StatementKind;

constexpr int kMostBlocks = 100;  // inside one another

class StatementParser {
 public:
  StatementParser(std::string_view source, const std::string& name)
      : tokens_(tokenize(source, name), name) {}

  Statements run() {
    Statements statements = body({});
    if (tokens_.peek().kind != TokenKind::kEnd)
      tokens_.fail(fmt::format("unexpected {}", tokens_.shown()));
    return statements;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  std::unique_ptr<Statement> make(Block kind) const {
    auto result = std::make_unique<Statement>();
    result->kind = kind;
    result->line = tokens_.line();
    return result;
  }

  // Up to a tag that begins with one of `ends`, whose name is next.
  Statements body(Ends ends) {
    if (++depth_ > kMostBlocks)
      tokens_.fail("blocks are nested too deeply");
    Statements statements;
    while (tokens_.peek().kind != TokenKind::kEnd) {
      const TokenKind kind = tokens_.peek().kind;
      if (kind == TokenKind::kData) {
        auto data = make(Block::kData);
        data->text = tokens_.next().text;
        statements.push_back(std::move(data));
      } else if (kind == TokenKind::kPrintBegin) {
        auto print = make(Block::kPrint);
        tokens_.next();
        print->expression = parse_tuple(tokens_);
        tokens_.expect(TokenKind::kPrintEnd, "'}}'");
        statements.push_back(std::move(print));
      } else {
        tokens_.expect(TokenKind::kStatementBegin, "'{%'");
        for (const std::string_view end : ends) {
          if (tokens_.is_name(end)) {
            --depth_;
            return statements;
          }
        }
        statements.push_back(statement());
      }
    }
    if (ends.size() > 0)
      tokens_.fail(fmt::format("'{{% {} %}}' is missing", *(ends.end() - 1)));
    --depth_;
    return statements;
  }

  void end_tag() { tokens_.expect(TokenKind::kStatementEnd, "'%}'"); }
  // The body of a block whose tag has been read, and the tag that ends it.
  Statements rest_of_block(std::string_view end) {
    end_tag();
    Statements statements = body({end});
    tokens_.next();
    end_tag();
    return statements;
  }

  std::unique_ptr<const Statement> statement() {
    const std::string word = tokens_.expect_name();
    if (word == "if")
      return if_block();
    if (word == "for")
      return for_block();
    if (word == "set")
      return set();
    if (word == "macro")
      return macro();
    if (word == "filter") {
      auto result = make(Block::kFilterBlock);
      result->filters = parse_block_filters(tokens_);
      result->body = rest_of_block("endfilter");
      return result;
    }
    if (word == "generation") {
      auto result = make(Block::kGeneration);
      result->body = rest_of_block("endgeneration");
      return result;
    }
    if (word == "break" || word == "continue") {
      auto result = make(word == "break" ? Block::kBreak : Block::kContinue);
      end_tag();
      return result;
    }
    tokens_.fail(fmt::format("'{{% {} %}}' is not supported", word));
  }

  // Behind `if` or `elif`.
  std::unique_ptr<const Statement> if_block() {
    auto result = make(Block::kIf);
    result->expression = parse_expression(tokens_);
    end_tag();
    result->body = body({"elif", "else", "endif"});
    const std::string end = tokens_.expect_name();
    if (end == "elif") {
      result->otherwise.push_back(if_block());
      return result;
    }
    if (end == "else")
      result->otherwise = rest_of_block("endif");
    else
      end_tag();
    return result;
  }

  std::vector<std::string> target_names() {
    const bool has_parenthesis = tokens_.take_operator("(");
    std::vector<std::string> names{tokens_.expect_name()};
    while (tokens_.take_operator(","))
      names.push_back(tokens_.expect_name());
    if (has_parenthesis)
      tokens_.expect_operator(")");
    return names;
  }

  std::unique_ptr<const Statement> for_block() {
    auto result = make(Block::kFor);
    result->names = target_names();
    tokens_.expect_name("in");
    result->expression = parse_plain_expression(tokens_);
    if (tokens_.take_name("if"))
      result->condition = parse_expression(tokens_);
    if (tokens_.is_name("recursive"))
      tokens_.fail("recursive loops are not supported");
    end_tag();
    const int loops_before = tokens_.loop_names();
    result->body = body({"else", "endfor"});
    result->uses_loop = tokens_.loop_names() > loops_before;
    if (tokens_.expect_name() == "else")
      result->otherwise = rest_of_block("endfor");
    else
      end_tag();
    return result;
  }

  std::unique_ptr<const Statement> set() {
    auto result = make(Block::kSet);
    result->names = target_names();
    if (tokens_.take_operator(".")) {
      if (result->names.size() > 1)
        tokens_.fail("an attribute among several names is not supported");
      result->attribute = tokens_.expect_name();
    }
    if (tokens_.take_operator("=")) {
      result->expression = parse_tuple(tokens_);
      end_tag();
      return result;
    }
    result->kind = Block::kSetBlock;
    if (tokens_.take_operator("|"))
      result->filters = parse_block_filters(tokens_);
    result->body = rest_of_block("endset");
    return result;
  }

  std::unique_ptr<const Statement> macro() {
    auto result = make(Block::kMacro);
    result->text = tokens_.expect_name();
    tokens_.expect_operator("(");
    while (!tokens_.take_operator(")")) {
      if (!result->names.empty())
        tokens_.expect_operator(",");
      result->names.push_back(tokens_.expect_name());
      if (tokens_.take_operator("="))
        result->defaults.push_back(parse_expression(tokens_));
      else if (!result->defaults.empty())
        tokens_.fail("a parameter without a default after one with a default");
    }
    result->body = rest_of_block("endmacro");
    return result;
  }

  TokenStream tokens_;
  int depth_ = 0;
};

}  // namespace

Statements parse(std::string_view source, const std::string& name) {
  return StatementParser(source, name).run();
}

}  // namespace brigade::jinja
