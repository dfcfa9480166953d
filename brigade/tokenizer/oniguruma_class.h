// Sets of characters in Oniguruma's patterns: [...] with sets inside it and
// intersections, \p{...}, \w and the like. Private to oniguruma*.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/oniguruma_reader.h"

namespace brigade {

enum class Case { kKept, kIgnored };

// A union of members that PCRE2 writes within [...] and of expressions that
// match one character each.
class CharacterSet {
 public:
  // `members`: PCRE2's, as within [...].
  void add(std::string_view members) { members_ += members; }
  // An expression that matches one character.
  void add_expression(std::string expression) {
    others_.push_back(std::move(expression));
  }
  bool is_plain() const { return others_.empty(); }

  // The expression that matches one character that is in the set, or is not.
  std::string text() const;
  std::string complement() const;

 private:
  std::string members_;
  std::vector<std::string> others_;
};

// A property or character type.
struct CharacterType {
  std::string members;  // as within [...]
  // Those that it lacks, as within [...]; empty: there is no such spelling.
  std::string lacking;
  // What must join the members of a set without regard to case so that it holds
  // the other case of each; absent: not known.
  std::optional<std::string> other_cases;
  // Whether one of its characters folds to several ("ß" to "ss").
  bool folds_to_several = true;
};

// \w \W \d \D \s \S \h \H, for the letter in lower case; absent for others.
std::optional<CharacterType> character_type(char32_t letter);
// What stands in \p{...} without ^. Absent: none is known.
std::optional<CharacterType> property_named(std::string_view name);
// What stands in [:...:].
std::optional<CharacterType> posix_class(std::string_view name);
// The type where it stands alone: Oniguruma's words, \w and what \b is about,
// have the numbers of Latin-1 (U+00B2) there, though not within [...].
CharacterType outside_of_classes(CharacterType type);
// \s, as within [...].
std::string_view space_members();

// From behind the [ on, the ] included.
std::string read_class(PatternReader& reader, Case letter_case);
struct NamedType {
  CharacterType type;
  bool is_negated = false;
};
// \w, \p{...} and the like, behind their backslash; absent: none comes next.
std::optional<NamedType> read_type(PatternReader& reader);

// Whether the character, in any case, folds to several characters.
bool folds_to_several(char32_t c);
// Whether these two in a row may be what one character folds to, in part.
bool may_fold_together(char32_t first, char32_t second);

}  // namespace brigade
