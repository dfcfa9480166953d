#include "brigade/tokenizer/oniguruma_class.h"

#include <fmt/format.h>

#include <cctype>
#include <utility>

namespace brigade {
namespace {

constexpr std::string_view kAny = "\\x{0}-\\x{10FFFF}";

// From the { of \p{...} or \P{...} on.
NamedType read_property(PatternReader& reader, char32_t letter) {
  NamedType named;
  named.is_negated = letter == 'P';
  reader.take("{");
  if (reader.take("^"))
    named.is_negated = !named.is_negated;
  const std::string name(reader.until("}"));
  const auto type = property_named(name);
  if (!type)
    reader.refuse(fmt::format("\\p{{{}}}", name));
  named.type = *type;
  return named;
}

// One class between its brackets. Follows prs_cc() of Oniguruma's regparse.c.
class ClassReader {
 public:
  ClassReader(PatternReader& reader, Case letter_case)
      : reader_(reader), ignores_case_(letter_case == Case::kIgnored) {}

  std::string read() {
    is_negated_ = reader_.take("^");
    // A ] in front is a character if the class is closed later.
    if (reader_.sees("]")) {
      reader_.next();
      if (!reader_.has_later(']'))
        reader_.fail("has an empty character class");
      range_or_character(']');
    }
    while (!reader_.take("]"))
      read_member();
    if (!and_.empty())
      finish_operand();
    if (ignores_case_ && (is_nested_ || !and_.empty()))
      reader_.refuse("(?i) with a set within a character class");
    CharacterSet whole = std::move(set_);
    if (!and_.empty()) {
      std::string last = and_.back();
      and_.pop_back();
      std::string text;
      for (const std::string& operand : and_)
        text += fmt::format("(?={})", operand);
      whole = {};
      whole.add_expression(fmt::format("(?:{}{})", text, last));
    }
    return is_negated_ ? whole.complement() : whole.text();
  }

 private:
  PatternReader& reader_;
  const bool ignores_case_;
  bool is_negated_ = false;
  bool is_nested_ = false;
  CharacterSet set_;
  std::vector<std::string> and_;  // operands of && before this one

  void finish_operand() {
    and_.push_back(set_.text());
    set_ = {};
  }

  void read_member() {
    if (reader_.done())
      reader_.fail("has a character class that is not closed");
    if (reader_.take("&&")) {
      finish_operand();
    } else if (reader_.sees("[:") && read_posix()) {
      after_type();
    } else if (reader_.take("[")) {
      is_nested_ = true;
      set_.add_expression(read_class(reader_, Case::kKept));
    } else if (reader_.take("\\")) {
      if (const auto type = read_type(reader_)) {
        add(*type);
        after_type();
      } else {
        range_or_character(reader_.escaped_character_in_class());
      }
    } else {
      range_or_character(reader_.next());
    }
  }

  // [:alpha:]; false when it is a set that begins with a colon.
  bool read_posix() {
    const size_t begin = reader_.position();
    reader_.take("[:");
    const bool is_negated = reader_.take("^");
    std::string name;
    while (!reader_.done() && reader_.peek() < 0x80 &&
           std::isalpha(static_cast<int>(reader_.peek())) != 0)
      name += static_cast<char>(reader_.next());
    if (!reader_.take(":]")) {
      reader_.return_to(begin);
      return false;
    }
    const auto type = posix_class(name);
    if (!type)
      reader_.fail(fmt::format("names an unknown class [:{}:]", name));
    add({.type = *type, .is_negated = is_negated});
    return true;
  }

  // A - behind a type is a character only at the end.
  void after_type() {
    if (reader_.sees("-") && !reader_.sees("-]") && !reader_.sees("-&&"))
      reader_.fail("has a range that begins with a set of characters");
  }

  void add(const NamedType& named) {
    const CharacterType& type = named.type;
    if (ignores_case_) {
      if (named.is_negated || !type.other_cases)
        reader_.refuse("(?i) with a property whose other case is not in it");
      if (type.folds_to_several && !is_negated_)
        reader_.refuse("(?i) with letters that fold to several");
      set_.add(*type.other_cases);
    }
    if (!named.is_negated)
      set_.add(type.members);
    else if (!type.lacking.empty())
      set_.add(type.lacking);
    else
      set_.add_expression(fmt::format("[^{}]", type.members));
  }

  // `first` was read; it may begin a range.
  void range_or_character(char32_t first) {
    char32_t last = first;
    if (reader_.sees("-[") || reader_.sees("--"))
      reader_.refuse("a - before [ or another -");
    if (reader_.sees("-") && !reader_.sees("-]") && !reader_.sees("-&&")) {
      reader_.next();
      if (reader_.take("\\")) {
        if (read_type(reader_))
          reader_.fail("has a range that ends with a set of characters");
        last = reader_.escaped_character_in_class();
      } else {
        last = reader_.next();
      }
      if (last < first)
        reader_.fail("has a range that ends before it begins");
    }
    if (ignores_case_)
      check_folding(first, last);
    set_.add(
        first == last ? literal(first)
                      : fmt::format("{}-{}", literal(first), literal(last)));
    // [a-c-e]: the second - is a character, here and in front of the ].
    if (reader_.sees("--"))
      reader_.refuse("a - before another -");
    if (reader_.sees("-"))
      set_.add(literal(reader_.next()));
  }

  void check_folding(char32_t first, char32_t last) const {
    if (is_negated_)
      return;
    for (char32_t c = first; c <= last; ++c) {
      if (folds_to_several(c))
        reader_.refuse("(?i) with letters that fold to several");
    }
  }
};

}  // namespace

std::string CharacterSet::text() const {
  if (others_.empty())
    return members_.empty() ? fmt::format("[^{}]", kAny)
                            : fmt::format("[{}]", members_);
  if (others_.size() == 1 && members_.empty())
    return others_.front();
  std::string text = "(?:";
  if (!members_.empty())
    text += fmt::format("[{}]|", members_);
  for (const std::string& other : others_)
    text += other + (&other == &others_.back() ? ")" : "|");
  return text;
}

std::string CharacterSet::complement() const {
  if (others_.empty())
    return members_.empty() ? fmt::format("[{}]", kAny)
                            : fmt::format("[^{}]", members_);
  return fmt::format("(?:(?!{})[{}])", text(), kAny);
}

std::string read_class(PatternReader& reader, Case letter_case) {
  return ClassReader(reader, letter_case).read();
}

std::optional<NamedType> read_type(PatternReader& reader) {
  const char32_t c = reader.peek();
  // Without a brace it is the letter.
  if (reader.sees("p{") || reader.sees("P{")) {
    reader.next();
    return read_property(reader, c);
  }
  const char32_t lower = c < 0x80 ? c | 0x20 : c;
  const auto type = character_type(lower);
  if (!type)
    return std::nullopt;
  reader.next();
  return NamedType{.type = *type, .is_negated = c != lower};
}

}  // namespace brigade
