#include "brigade/json/skip_value.h"

#include <algorithm>

#include "brigade/json/string_literal.h"

namespace brigade {
namespace {

class Skipper {
 public:
  explicit Skipper(std::string_view text) : text_(text) {}

  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted)
      return false;
    ++at_;
    return true;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  size_t position() {
    skip_space();
    return at_;
  }

  // Each is false when no such thing comes next.
  bool string() {
    if (!accept('"'))
      return false;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"')
        return true;
      if (static_cast<unsigned char>(c) < 0x20)
        return false;
      if (c == '\\' && !escape())
        return false;
    }
    return false;
  }

  bool value() {
    std::string open;  // brackets that are not closed so far
    while (true) {
      if (accept('[')) {
        open += '[';
        if (!accept(']'))
          continue;
        open.pop_back();
      } else if (accept('{')) {
        open += '{';
        if (!accept('}')) {
          if (!name())
            return false;
          continue;
        }
        open.pop_back();
      } else if (!scalar()) {
        return false;
      }
      while (!open.empty() && accept(open.back() == '{' ? '}' : ']'))
        open.pop_back();
      if (open.empty())
        return true;
      if (!accept(',') || (open.back() == '{' && !name()))
        return false;
    }
  }

 private:
  std::string_view text_;
  size_t at_ = 0;

  void skip_space() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
  }

  bool name() { return string() && accept(':'); }

  bool escape() {
    if (at_ == text_.size())
      return false;
    const char c = text_[at_++];
    if (c != 'u')
      return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == text_.size() ||
          std::string_view("0123456789abcdefABCDEF").find(text_[at_]) ==
              std::string_view::npos)
        return false;
    }
    return true;
  }

  bool scalar() {
    skip_space();
    for (const std::string_view word :
         {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return true;
      }
    }
    return string() || number();
  }

  bool digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9')
      ++at_;
    return at_ > begin;
  }
  bool take(std::string_view any_of) {
    if (at_ == text_.size() ||
        any_of.find(text_[at_]) == std::string_view::npos)
      return false;
    ++at_;
    return true;
  }

  bool number() {
    take("-");
    if (!take("0") && !digits())
      return false;
    if (take(".") && !digits())
      return false;
    if (take("eE")) {
      take("+-");
      return digits();
    }
    return true;
  }
};

}  // namespace

std::optional<StringMember> string_member_among_any(
    std::string_view text,
    std::string_view key) {
  using Outcome = StringMember::Outcome;
  Skipper skipper(text);
  JsonStringProblem problem;
  StringMember found{.outcome = Outcome::kAbsent, .text = ""};
  if (!skipper.accept('{'))
    return std::nullopt;
  do {
    const auto name = read_string_literal(text, skipper.position(), problem);
    if (!skipper.string() || !skipper.accept(':'))
      return std::nullopt;
    const size_t begin = skipper.position();
    if (!skipper.value())
      return std::nullopt;
    if (!name || decode(*name) != key)
      continue;
    found = {.outcome = Outcome::kOtherType, .text = ""};
    if (text[begin] != '"')
      continue;
    const auto literal = read_string_literal(text, begin, problem);
    if (!literal)
      return std::nullopt;
    found = {.outcome = Outcome::kString, .text = decode(*literal)};
  } while (skipper.accept(','));
  if (!skipper.accept('}') || !skipper.at_end())
    return std::nullopt;
  return found;
}

}  // namespace brigade
