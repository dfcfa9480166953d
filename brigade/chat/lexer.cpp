#include "brigade/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/chat/text.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade::jinja {

void fail_at_line(const std::string& name, int line, const std::string& what) {
  throw DataError(fmt::format("[chat] {}:{}: {}", name, line, what));
}

namespace {

// Line ends as "\n", and the last one taken off.
std::string normalized(std::string_view source) {
  std::string result;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      result += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      result += '\n';
  }
  if (result.ends_with('\n'))
    result.pop_back();
  return result;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(normalized(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t open = find_open();
      read_data(open);
      if (open < source_.size())
        read_tag();
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  size_t find_open() const {
    for (size_t at = at_; at + 1 < source_.size(); ++at) {
      const char second = source_[at + 1];
      if (source_[at] == '{' &&
          (second == '{' || second == '%' || second == '#'))
        return at;
    }
    return source_.size();
  }

  // The text up to the tag at `open`, without the white space that the tag
  // takes away.
  void read_data(size_t open) {
    std::string data = source_.substr(at_, open - at_);
    const bool has_tag = open < source_.size();
    const char sign =
        has_tag && open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (sign == '-') {
      data = strip(Text(data), Sides::kRight).bytes();
    } else if (has_tag && source_[open + 1] != '{' && sign != '+') {
      const size_t line_begin = data.rfind('\n') + 1;  // npos + 1 is 0
      const bool begins_line = line_begin > 0 || at_line_start_;
      if (begins_line &&
          strip(Text(data.substr(line_begin)), Sides::kLeft).empty())
        data.erase(line_begin);
    }
    if (!data.empty())
      add(TokenKind::kData, data);
    count_lines(at_, open);
    at_ = open;
  }

  void read_tag() {
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (kind == '#')
      return skip_comment();
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+'))
      ++at_;
    const bool prints = kind == '{';
    add(prints ? TokenKind::kPrintBegin : TokenKind::kStatementBegin, "");
    const std::string_view close = prints ? "}}" : "%}";
    depth_ = 0;
    while (true) {
      skip_blanks();
      if (at_ >= source_.size())
        fail(fmt::format("'{}' is missing", close));
      const std::string_view rest = std::string_view(source_).substr(at_);
      const bool has_sign = rest[0] == '-' || (!prints && rest[0] == '+');
      if (depth_ == 0 && (rest.starts_with(close) ||
                          (has_sign && rest.substr(1).starts_with(close))))
        break;
      read_token();
    }
    const char sign = source_[at_];
    add(prints ? TokenKind::kPrintEnd : TokenKind::kStatementEnd, "");
    at_ += sign == '-' || sign == '+' ? 3 : 2;
    end_tag(sign, !prints);
  }

  void skip_comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos)
      fail("'#}' is missing");
    const char sign = close > at_ ? source_[close - 1] : '\0';
    count_lines(at_, close);
    at_ = close + 2;
    end_tag(sign, true);
  }

  // What the end of a tag takes away behind it.
  void end_tag(char sign, bool trims_line_end) {
    const size_t begin = at_;
    if (sign == '-') {
      skip_blanks();
    } else if (
        trims_line_end && sign != '+' && at_ < source_.size() &&
        source_[at_] == '\n') {
      ++line_;
      ++at_;
    }
    at_line_start_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void read_token() {
    const char c = source_[at_];
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_')
      return read_while(TokenKind::kName, [](char other) {
        return std::isalnum(static_cast<unsigned char>(other)) || other == '_';
      });
    if (std::isdigit(static_cast<unsigned char>(c)))
      return read_number();
    if (c == '\'' || c == '"')
      return read_string(c);
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|", ";"};
    for (const std::string_view op : kOperators) {
      if (!std::string_view(source_).substr(at_).starts_with(op))
        continue;
      depth_ += op == "(" || op == "[" || op == "{" ? 1 : 0;
      depth_ -= op == ")" || op == "]" || op == "}" ? 1 : 0;
      add(TokenKind::kOperator, std::string(op));
      at_ += op.size();
      return;
    }
    const std::string_view rest = std::string_view(source_).substr(at_);
    const std::string_view character = rest.substr(0, utf8_length(c));
    if (valid_utf8_prefix(character) < character.size())
      fail(fmt::format(
          "unexpected byte 0x{:02x}", static_cast<unsigned char>(c)));
    fail(fmt::format("unexpected '{}'", character));
  }

  template <typename Belongs>
  void read_while(TokenKind kind, const Belongs& belongs) {
    const size_t begin = at_;
    while (at_ < source_.size() && belongs(source_[at_]))
      ++at_;
    add(kind, source_.substr(begin, at_ - begin));
  }

  void read_number() {
    const size_t begin = at_;
    const auto skip_digits = [&] {
      while (at_ < source_.size() &&
             (std::isdigit(static_cast<unsigned char>(source_[at_])) ||
              source_[at_] == '_'))
        ++at_;
    };
    skip_digits();
    bool is_float = false;
    if (at_ + 1 < source_.size() && source_[at_] == '.' &&
        std::isdigit(static_cast<unsigned char>(source_[at_ + 1]))) {
      is_float = true;
      ++at_;
      skip_digits();
    }
    const auto rest = std::string_view(source_).substr(at_);
    const size_t sign = rest.size() > 1 && (rest[1] == '-' || rest[1] == '+');
    if ((rest.starts_with('e') || rest.starts_with('E')) &&
        rest.size() > 1 + sign &&
        std::isdigit(static_cast<unsigned char>(rest[1 + sign]))) {
      is_float = true;
      at_ += 1 + sign;
      skip_digits();
    }
    std::string digits = source_.substr(begin, at_ - begin);
    std::erase(digits, '_');
    if (digits.size() > 18)
      fail(fmt::format("the number {} is too long", digits));
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
  }

  void read_string(char quote) {
    std::string value;
    const int line = line_;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] == '\n')
        ++line_;
      if (source_[at_] != '\\' || at_ + 1 == source_.size())
        value += source_[at_];
      else
        read_escape(value);
    }
    if (at_ >= source_.size())
      fail_at_line(name_, line, "a string does not end");
    ++at_;
    tokens_.push_back({TokenKind::kString, std::move(value), line});
  }

  static bool is_octal(char c) { return c >= '0' && c <= '7'; }

  // One to three digits.
  void read_octal(std::string& value) {
    char32_t code = 0;
    const size_t end = std::min(at_ + 3, source_.size());
    for (; at_ < end && is_octal(source_[at_]); ++at_)
      code = code * 8 + static_cast<char32_t>(source_[at_] - '0');
    --at_;
    append_utf8(value, code);
  }

  // At a backslash; ends at the last character of the escape.
  void read_escape(std::string& value) {
    static constexpr std::string_view kLetters = "ntrbfav\\'\"";
    static constexpr std::string_view kMeanings = "\n\t\r\b\f\a\v\\'\"";
    const char letter = source_[++at_];
    const size_t found = kLetters.find(letter);
    if (found != std::string_view::npos) {
      value += kMeanings[found];
      return;
    }
    if (letter == '\n') {  // the line goes on
      ++line_;
      return;
    }
    if (letter == 'N')
      fail("'\\N{...}' is not supported");
    if (is_octal(letter))
      return read_octal(value);
    const size_t digits = letter == 'x'   ? 2
                          : letter == 'u' ? 4
                          : letter == 'U' ? 8
                                          : 0;
    if (digits == 0) {
      value += {'\\', letter};  // as Python leaves it
      return;
    }
    char32_t code = 0;
    for (size_t i = 1; i <= digits; ++i) {
      const char c = at_ + i < source_.size() ? source_[at_ + i] : ' ';
      if (!std::isxdigit(static_cast<unsigned char>(c)))
        fail(fmt::format("'\\{}' needs {} hexadecimal digits", letter, digits));
      code = code * 16 +
             static_cast<char32_t>(
                 std::isdigit(static_cast<unsigned char>(c))
                     ? c - '0'
                     : std::tolower(static_cast<unsigned char>(c)) - 'a' + 10);
    }
    append_utf8(value, code);
    at_ += digits;
  }

  void skip_blanks() {
    while (at_ < source_.size() && !is_utf8_continuation(source_[at_]) &&
           is_python_space(code_point_at(source_, at_))) {
      line_ += source_[at_] == '\n' ? 1 : 0;
      at_ += utf8_length(source_[at_]);
    }
  }

  void count_lines(size_t begin, size_t end) {
    const auto first = source_.begin();
    line_ += static_cast<int>(std::count(
        first + static_cast<std::ptrdiff_t>(begin),
        first + static_cast<std::ptrdiff_t>(end),
        '\n'));
  }

  void add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  [[noreturn]] void fail(const std::string& what) const {
    fail_at_line(name_, line_, what);
  }

  const std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;  // of brackets, in a tag
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace brigade::jinja
