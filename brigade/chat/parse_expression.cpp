#include "brigade/chat/parse_expression.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>
#include <utility>

namespace brigade::jinja {
namespace {

using Kind = ExpressionKind;

// Deep enough for any template, and safe for the stack.
constexpr int kMostNesting = 200;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPointer conditional() {
    auto value = disjunction();
    while (tokens_.is_name("if")) {
      auto result = make(Kind::kConditional);
      tokens_.next();
      result->parts.push_back(disjunction());
      result->parts.push_back(std::move(value));
      result->parts.push_back(
          tokens_.take_name("else") ? conditional() : nullptr);
      value = std::move(result);
    }
    return value;
  }

  ExpressionPointer disjunction() {
    const Nesting nesting(*this);
    auto left = conjunction();
    while (tokens_.is_name("or"))
      left = pair(Kind::kOr, std::move(left), &ExpressionParser::conjunction);
    return left;
  }

  ExpressionPointer tuple() {
    auto first = conditional();
    if (!tokens_.is_operator(","))
      return first;
    auto list = make(Kind::kList);
    list->parts.push_back(std::move(first));
    while (tokens_.take_operator(",") && begins_expression())
      list->parts.push_back(conditional());
    return list;
  }

  ExpressionPointer filters(ExpressionPointer operand) {
    while (true) {
      if (tokens_.take_operator("|"))
        operand = filter(std::move(operand));
      else if (tokens_.is_name("is"))
        operand = test(std::move(operand));
      else if (tokens_.is_operator("("))
        operand = call(std::move(operand));
      else
        return operand;
    }
  }

  ExpressionPointer block_filters() {
    auto body = make(Kind::kName);
    body->name = kBodyName;
    return filters(filter(std::move(body)));
  }

 private:
  struct Nesting {
    explicit Nesting(ExpressionParser& parser) : depth(parser.depth_) {
      if (++depth > kMostNesting)
        parser.tokens_.fail("expressions are nested too deeply");
    }
    ~Nesting() { --depth; }
    int& depth;
  };
  using Rule = ExpressionPointer (ExpressionParser::*)();

  std::unique_ptr<Expression> make(Kind kind) const {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->line = tokens_.line();
    return result;
  }

  // At an operator; its right side is by `rule`.
  ExpressionPointer pair(Kind kind, ExpressionPointer left, Rule rule) {
    auto result = make(kind);
    result->name = tokens_.next().text;
    result->parts.push_back(std::move(left));
    result->parts.push_back((this->*rule)());
    return result;
  }

  ExpressionPointer conjunction() {
    auto left = negation();
    while (tokens_.is_name("and"))
      left = pair(Kind::kAnd, std::move(left), &ExpressionParser::negation);
    return left;
  }

  ExpressionPointer negation() {
    if (!tokens_.is_name("not"))
      return comparison();
    const Nesting nesting(*this);
    auto result = make(Kind::kNot);
    tokens_.next();
    result->parts.push_back(negation());
    return result;
  }

  std::string comparison_operator() {
    for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="}) {
      if (tokens_.take_operator(op))
        return std::string(op);
    }
    if (tokens_.take_name("in"))
      return "in";
    if (tokens_.is_name("not") && tokens_.peek(1).is(TokenKind::kName, "in")) {
      tokens_.next();
      tokens_.next();
      return "not in";
    }
    return "";
  }

  ExpressionPointer comparison() {
    auto left = sum();
    auto result = make(Kind::kComparison);
    for (std::string op = comparison_operator(); !op.empty();
         op = comparison_operator()) {
      result->operators.push_back(op);
      if (left)
        result->parts.push_back(std::move(left));
      result->parts.push_back(sum());
    }
    return result->operators.empty() ? std::move(left) : std::move(result);
  }

  template <size_t N>
  ExpressionPointer chain(
      const std::array<std::string_view, N>& operators,
      Rule rule) {
    auto left = (this->*rule)();
    while (true) {
      bool found = false;
      for (const std::string_view op : operators) {
        if (!found && tokens_.is_operator(op)) {
          left = pair(Kind::kBinary, std::move(left), rule);
          found = true;
        }
      }
      if (!found)
        return left;
    }
  }
  ExpressionPointer sum() {
    return chain(
        std::array<std::string_view, 2>{"+", "-"}, &ExpressionParser::joined);
  }
  ExpressionPointer joined() {
    return chain(std::array<std::string_view, 1>{"~"}, &ExpressionParser::term);
  }
  ExpressionPointer term() {
    return chain(
        std::array<std::string_view, 4>{"*", "/", "//", "%"},
        &ExpressionParser::power);
  }
  ExpressionPointer power() {
    return chain(
        std::array<std::string_view, 1>{"**"}, &ExpressionParser::signed_value);
  }

  ExpressionPointer signed_value() { return filters(unfiltered()); }

  ExpressionPointer unfiltered() {
    const bool is_negative = tokens_.is_operator("-");
    if (!is_negative && !tokens_.is_operator("+"))
      return postfix(primary());
    const Nesting nesting(*this);
    auto result = make(is_negative ? Kind::kNegative : Kind::kPositive);
    tokens_.next();
    result->parts.push_back(unfiltered());
    return result;
  }

  ExpressionPointer constant(Value value) {
    auto result = make(Kind::kConstant);
    result->value = std::move(value);
    return result;
  }

  ExpressionPointer primary() {
    const Token& token = tokens_.peek();
    switch (token.kind) {
      case TokenKind::kName:
        return name();
      case TokenKind::kString: {
        std::string text;
        while (tokens_.peek().kind == TokenKind::kString)
          text += tokens_.next().text;
        return constant(std::move(text));
      }
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return number();
      default:
        break;
    }
    if (tokens_.is_operator("("))
      return parenthesis();
    if (tokens_.is_operator("["))
      return collection(Kind::kList, "]");
    if (tokens_.is_operator("{"))
      return collection(Kind::kDict, "}");
    tokens_.fail(fmt::format("unexpected {}", tokens_.shown()));
  }

  ExpressionPointer number() {
    const Token token = tokens_.next();
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == TokenKind::kInteger) {
      int64_t value = 0;
      std::from_chars(token.text.data(), end, value);
      return constant(value);
    }
    double value = 0;
    std::from_chars(token.text.data(), end, value);
    return constant(value);
  }

  ExpressionPointer name() {
    auto result = make(Kind::kName);
    result->name = tokens_.next().text;
    if (result->name == "true" || result->name == "True")
      return constant(true);
    if (result->name == "false" || result->name == "False")
      return constant(false);
    if (result->name == "none" || result->name == "None")
      return constant(None{});
    return result;
  }

  bool begins_expression() const {
    const Token& token = tokens_.peek();
    return token.kind != TokenKind::kStatementEnd &&
           token.kind != TokenKind::kPrintEnd &&
           !token.is(TokenKind::kOperator, ")") &&
           !token.is(TokenKind::kOperator, "=");
  }

  ExpressionPointer parenthesis() {
    tokens_.next();
    if (tokens_.take_operator(")"))
      return make(Kind::kList);
    auto inner = tuple();
    tokens_.expect_operator(")");
    return inner;
  }

  // A list, or a dict, whose parts are its keys and values in turns.
  ExpressionPointer collection(Kind kind, const char* closing) {
    auto result = make(kind);
    tokens_.next();
    while (!tokens_.take_operator(closing)) {
      if (!result->parts.empty()) {
        tokens_.expect_operator(",");
        if (tokens_.take_operator(closing))
          break;
      }
      result->parts.push_back(conditional());
      if (kind == Kind::kDict) {
        tokens_.expect_operator(":");
        result->parts.push_back(conditional());
      }
    }
    return result;
  }

  ExpressionPointer postfix(ExpressionPointer operand) {
    while (true) {
      if (tokens_.is_operator("."))
        operand = attribute(std::move(operand));
      else if (tokens_.is_operator("["))
        operand = subscript(std::move(operand));
      else if (tokens_.is_operator("("))
        operand = call(std::move(operand));
      else
        return operand;
    }
  }

  ExpressionPointer attribute(ExpressionPointer operand) {
    auto result = make(Kind::kAttribute);
    tokens_.next();
    result->parts.push_back(std::move(operand));
    if (tokens_.peek().kind == TokenKind::kInteger) {
      result->kind = Kind::kItem;
      result->parts.push_back(number());
      return result;
    }
    result->name = tokens_.expect_name();
    return result;
  }

  ExpressionPointer subscript(ExpressionPointer operand) {
    auto result = make(Kind::kItem);
    tokens_.next();
    result->parts.push_back(std::move(operand));
    const auto bound = [&]() -> ExpressionPointer {
      return tokens_.is_operator(":") || tokens_.is_operator("]")
                 ? nullptr
                 : conditional();
    };
    result->parts.push_back(bound());
    if (tokens_.is_operator(":"))
      result->kind = Kind::kSlice;
    else if (!result->parts.back())
      tokens_.fail("nothing between '[' and ']'");
    while (tokens_.take_operator(":"))
      result->parts.push_back(bound());
    if (result->kind == Kind::kSlice) {
      if (result->parts.size() > 4)
        tokens_.fail("a slice has at most three parts");
      result->parts.resize(4);
    }
    tokens_.expect_operator("]");
    return result;
  }

  void arguments(Expression& result) {
    tokens_.expect_operator("(");
    bool is_first = true;
    while (!tokens_.take_operator(")")) {
      if (!is_first) {
        tokens_.expect_operator(",");
        if (tokens_.take_operator(")"))
          return;
      }
      is_first = false;
      if (tokens_.is_operator("*") || tokens_.is_operator("**"))
        tokens_.fail("arguments with '*' are not supported");
      if (tokens_.peek().kind == TokenKind::kName &&
          tokens_.peek(1).is(TokenKind::kOperator, "=")) {
        std::string name = tokens_.next().text;
        tokens_.next();
        result.named.emplace_back(std::move(name), conditional());
      } else if (result.named.empty()) {
        result.parts.push_back(conditional());
      } else {
        tokens_.fail("an argument without a name after one with a name");
      }
    }
  }

  ExpressionPointer call(ExpressionPointer operand) {
    auto result = make(Kind::kCall);
    result->parts.push_back(std::move(operand));
    arguments(*result);
    return result;
  }

  ExpressionPointer filter(ExpressionPointer operand) {
    auto result = make(Kind::kFilter);
    result->name = tokens_.expect_name();
    result->parts.push_back(std::move(operand));
    if (tokens_.is_operator("("))
      arguments(*result);
    return result;
  }

  ExpressionPointer test(ExpressionPointer operand) {
    auto result = make(Kind::kTest);
    tokens_.next();
    const bool is_negated = tokens_.take_name("not");
    result->name = tokens_.expect_name();
    result->parts.push_back(std::move(operand));
    if (tokens_.is_operator("("))
      arguments(*result);
    else if (begins_operand())
      result->parts.push_back(postfix(primary()));
    if (!is_negated)
      return result;
    auto negated = make(Kind::kNot);
    negated->parts.push_back(std::move(result));
    return negated;
  }

  // Whether the operand of a test without parentheses follows:
  // `is divisibleby 3`.
  bool begins_operand() const {
    const Token& token = tokens_.peek();
    switch (token.kind) {
      case TokenKind::kName:
        return token.text != "else" && token.text != "or" &&
               token.text != "and" && token.text != "is" &&
               token.text != "if" && token.text != "in" && token.text != "not";
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      default:
        return tokens_.is_operator("[") || tokens_.is_operator("{");
    }
  }

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace

ExpressionPointer parse_expression(TokenStream& tokens) {
  return ExpressionParser(tokens).conditional();
}

ExpressionPointer parse_plain_expression(TokenStream& tokens) {
  return ExpressionParser(tokens).disjunction();
}

ExpressionPointer parse_tuple(TokenStream& tokens) {
  return ExpressionParser(tokens).tuple();
}

ExpressionPointer parse_block_filters(TokenStream& tokens) {
  return ExpressionParser(tokens).block_filters();
}

}  // namespace brigade::jinja
