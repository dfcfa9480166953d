// The names in \p{...} and [:...:], and what they are in PCRE2. Compared with
// Oniguruma over all code points.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "brigade/tokenizer/oniguruma_class.h"

namespace brigade {
namespace {

// PCRE2 10.42 still counts U+180E as \s, and leaves marks and connectors out
// of \w.
constexpr std::string_view kSpace =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}"
    "\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// U+0345 is a mark whose other case is the letter iota.
constexpr const char* kIotaBelow = "\\x{345}";
constexpr const char* kIotas = "\\x{399}\\x{3B9}\\x{1FBE}";

struct Names {
  const char* brief;
  const char* full;
};
constexpr Names kCategories[] = {
    {"C", "other"},
    {"Cc", "control"},
    {"Cf", "format"},
    {"Cn", "unassigned"},
    {"Co", "privateuse"},
    {"Cs", "surrogate"},
    {"L", "letter"},
    {"Ll", "lowercaseletter"},
    {"Lm", "modifierletter"},
    {"Lo", "otherletter"},
    {"Lt", "titlecaseletter"},
    {"Lu", "uppercaseletter"},
    {"M", "mark"},
    {"M", "combiningmark"},
    {"Mc", "spacingmark"},
    {"Me", "enclosingmark"},
    {"Mn", "nonspacingmark"},
    {"N", "number"},
    {"Nd", "decimalnumber"},
    {"Nl", "letternumber"},
    {"No", "othernumber"},
    {"P", "punctuation"},
    {"Pc", "connectorpunctuation"},
    {"Pd", "dashpunctuation"},
    {"Pe", "closepunctuation"},
    {"Pf", "finalpunctuation"},
    {"Pi", "initialpunctuation"},
    {"Po", "otherpunctuation"},
    {"Ps", "openpunctuation"},
    {"S", "symbol"},
    {"Sc", "currencysymbol"},
    {"Sk", "modifiersymbol"},
    {"Sm", "mathsymbol"},
    {"So", "othersymbol"},
    {"Z", "separator"},
    {"Zl", "lineseparator"},
    {"Zp", "paragraphseparator"},
    {"Zs", "spaceseparator"}};

CharacterType general_category(const std::string& name) {
  CharacterType type{
      .members = fmt::format("\\p{{{}}}", name),
      .lacking = fmt::format("\\P{{{}}}", name)};
  // Numbers, punctuation, symbols and separators hold each other's cases.
  if (name[0] == 'N' || name[0] == 'P' || name[0] == 'S' || name[0] == 'Z') {
    type.other_cases = "";
    type.folds_to_several = false;
  } else if (name == "L") {
    type.other_cases = kIotaBelow;
  } else if (name == "M") {
    type.other_cases = kIotas;
    type.folds_to_several = false;
  }
  return type;
}

CharacterType closed(std::string_view members, std::string_view lacking) {
  return {
      .members = std::string(members),
      .lacking = std::string(lacking),
      .other_cases = "",
      .folds_to_several = false};
}

// A set of which nothing is known without regard to case.
CharacterType plain(std::string_view members, std::string_view lacking = "") {
  return {
      .members = std::string(members),
      .lacking = std::string(lacking),
      .other_cases = std::nullopt};
}

}  // namespace

std::optional<CharacterType> posix_class(std::string_view name) {
  static const CharacterType kWords{
      .members = std::string(kWord), .other_cases = ""};
  static const std::array<std::pair<const char*, CharacterType>, 14> kTypes = {{
      {"alnum", plain("\\p{Alphabetic}\\p{Nd}")},
      {"alpha", plain("\\p{Alphabetic}", "\\P{Alphabetic}")},
      {"ascii", plain("\\x00-\\x7F")},
      {"blank", closed("\\p{Zs}\\x09", "")},
      {"cntrl", closed("\\p{Cc}", "\\P{Cc}")},
      {"digit", closed("\\p{Nd}", "\\P{Nd}")},
      {"graph", plain("\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}")},
      {"lower", plain("\\p{Lowercase}", "\\P{Lowercase}")},
      {"print", plain("\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}")},
      {"punct", closed("\\p{P}\\p{S}", "")},
      {"space", closed(kSpace, "\\P{White_Space}")},
      {"upper", plain("\\p{Uppercase}", "\\P{Uppercase}")},
      {"xdigit", closed("0-9a-fA-F", "")},
      {"word", kWords},
  }};
  for (const auto& [known, type] : kTypes) {
    if (name == known)
      return type;
  }
  return std::nullopt;
}

namespace {

bool pcre2_knows(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()),
      pattern.size(),
      PCRE2_UTF,
      &error,
      &offset,
      nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

}  // namespace

CharacterType outside_of_classes(CharacterType type) {
  if (type.members == kWord)
    type.members += "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
  return type;
}

std::string_view space_members() {
  return kSpace;
}

std::optional<CharacterType> character_type(char32_t letter) {
  switch (letter) {
    case 'w':
      return posix_class("word");
    case 'd':
      return posix_class("digit");
    case 's':
      return posix_class("space");
    case 'h':
      return posix_class("xdigit");
    default:
      return std::nullopt;
  }
}

std::optional<CharacterType> property_named(std::string_view given) {
  // Case, spaces, - and _ do not matter.
  std::string name;
  for (const char c : given) {
    if (c == ' ' || c == '-' || c == '_')
      continue;
    if (std::isalnum(static_cast<unsigned char>(c)) == 0)
      return std::nullopt;
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const auto& [brief, full] : kCategories) {
    std::string lower = brief;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
      return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    });
    if (name == lower || name == full)
      return general_category(brief);
  }
  if (name == "lc" || name == "casedletter")
    return plain("\\p{Lu}\\p{Ll}\\p{Lt}");
  if (name == "any")
    return plain("\\x{0}-\\x{10FFFF}");
  if (name == "assigned")
    return plain("\\P{Cn}", "\\p{Cn}");
  // Unlike [:punct:], without symbols.
  if (name == "punct")
    return general_category("P");
  if (const auto type = posix_class(name))
    return type;
  // PCRE2's own inventions begin with X.
  if (name.size() < 3 || name[0] == 'x')
    return std::nullopt;
  // A script means its own characters, where PCRE2 would also take those that
  // the script shares with others.
  for (const std::string& spelled : {"sc:" + name, name}) {
    if (pcre2_knows("\\p{" + spelled + "}"))
      return plain("\\p{" + spelled + "}", "\\P{" + spelled + "}");
  }
  return std::nullopt;
}

bool folds_to_several(char32_t c) {
  // Status F of CaseFolding.txt, the Greek ones with a few between them.
  static constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0xDF, 0xDF},
      {0x130, 0x130},
      {0x149, 0x149},
      {0x1F0, 0x1F0},
      {0x390, 0x390},
      {0x3B0, 0x3B0},
      {0x587, 0x587},
      {0x1E96, 0x1E9A},
      {0x1E9E, 0x1E9E},
      {0x1F50, 0x1F56},
      {0x1F80, 0x1FFC},
      {0xFB00, 0xFB06},
      {0xFB13, 0xFB17}};
  return std::any_of(
      std::begin(kRanges), std::end(kRanges), [&](const auto& range) {
        return c >= range.first && c <= range.second;
      });
}

bool may_fold_together(char32_t first, char32_t second) {
  const auto lower = [](char32_t c) {
    return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17F ? U's' : c;
  };
  const auto is_in = [](char32_t c, char32_t low, char32_t high) {
    return c >= low && c <= high;
  };
  const char32_t a = lower(first);
  const char32_t b = lower(second);
  // ss, st, ff, fi, fl; a letter and a mark of its own.
  if (a == 's' && (b == 's' || b == 't'))
    return true;
  if (a == 'f' && (b == 'f' || b == 'i' || b == 'l'))
    return true;
  if (is_in(a, 'a', 'z') && (is_in(b, 0x300, 0x36F) || b == 0x2BE))
    return true;
  if (a == 0x2BC && b == 'n')
    return true;
  // Greek with iota or marks, Armenian.
  const auto is_greek = [&](char32_t c) {
    return is_in(c, 0x300, 0x3FF) || is_in(c, 0x1F00, 0x1FFF);
  };
  if (is_greek(a) && is_greek(b))
    return true;
  return is_in(a, 0x530, 0x58F) && is_in(b, 0x530, 0x58F);
}

}  // namespace brigade
