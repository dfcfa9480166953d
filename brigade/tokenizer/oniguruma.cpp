#include "brigade/tokenizer/oniguruma.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "brigade/tokenizer/oniguruma_class.h"
#include "brigade/tokenizer/oniguruma_reader.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

constexpr int kMaxDepth = 100;

// The options in force; they end with their group.
struct Options {
  bool ignores_case = false;
  bool dot_takes_newline = false;
  bool is_extended = false;  // white space and comments are not read
};

// What a quantifier repeats.
struct Atom {
  std::string text;
  bool is_one = true;  // may stand before a quantifier without brackets
  bool may_repeat = true;
};

// Whether plain (...) capture: not where some group has a name.
enum class Capture { kAll, kNamed };

class Translator {
 public:
  Translator(std::string_view pattern, Capture capture, const JsonNode& place)
      : reader_(pattern, place), capture_(capture) {}

  std::string run() {
    std::string text = alternatives({});
    if (!reader_.done())
      reader_.fail("has a ) without (");
    return text;
  }
  bool has_names() const { return !names_.empty(); }

 private:
  PatternReader reader_;
  const Capture capture_;
  std::map<std::string, int, std::less<>> names_;
  int groups_ = 0;
  int depth_ = 0;
  // The character before, without regard to case: \0 if there is none.
  char32_t before_ = 0;

  // Up to the end or a ), which stays.
  std::string alternatives(Options options) {
    if (++depth_ > kMaxDepth)
      reader_.fail(fmt::format("nests deeper than {} groups", kMaxDepth));
    const char32_t before = before_;
    std::string text;
    while (true) {
      before_ = before;
      text += sequence(options);
      if (!reader_.take("|"))
        break;
      text += '|';
    }
    --depth_;
    return text;
  }

  std::string sequence(const Options& options) {
    std::string text;
    while (!reader_.done() && !reader_.sees("|") && !reader_.sees(")")) {
      if (skip(options))
        continue;
      Atom atom = read_atom(options);
      while (!reader_.done()) {
        if (skip(options))
          continue;
        const std::string quantifier = read_quantifier();
        if (quantifier.empty())
          break;
        if (!atom.may_repeat)
          reader_.fail("repeats something that has no length");
        if (!atom.is_one)
          atom.text = fmt::format("(?:{})", atom.text);
        atom.text += quantifier;
        atom.is_one = false;
      }
      text += atom.text;
    }
    return text;
  }

  // Comments and, in extended form, white space.
  bool skip(const Options& options) {
    if (reader_.take("(?#")) {
      while (!reader_.take(")")) {
        if (reader_.next() == '\\')
          reader_.next();
      }
      return true;
    }
    if (!options.is_extended)
      return false;
    if (reader_.take("#")) {
      while (!reader_.done() && reader_.next() != '\n') {
      }
      return true;
    }
    if (reader_.done() || !is_white_space(reader_.peek()))
      return false;
    reader_.next();
    return true;
  }

  // "" if none comes next.
  std::string read_quantifier() {
    for (const char* sign : {"*", "+", "?"}) {
      if (!reader_.take(sign))
        continue;
      for (const char* how : {"?", "+"}) {
        if (reader_.take(how))
          return std::string(sign) + how;
      }
      return sign;
    }
    const size_t begin = reader_.position();
    const std::string interval = reader_.take("{") ? read_interval() : "";
    if (interval.empty())
      reader_.return_to(begin);
    return interval;
  }

  // From behind the { on; "" if it is text. Unlike in PCRE2, a + behind it
  // repeats it, so does a ? behind {n}, and {m,n} with m > n is possessive.
  std::string read_interval() {
    const auto low = reader_.number();
    if (!reader_.take(","))
      return low && reader_.take("}") ? fmt::format("{{{}}}", *low) : "";
    const auto high = reader_.number();
    if ((!low && !high) || !reader_.take("}"))
      return "";
    const int least = low.value_or(0);
    if (high && least > *high)
      return fmt::format("{{{},{}}}+", *high, least);
    const char* const lazy = reader_.take("?") ? "?" : "";
    return high ? fmt::format("{{{},{}}}{}", least, *high, lazy)
                : fmt::format("{{{},}}{}", least, lazy);
  }

  Atom read_atom(const Options& options) {
    for (const char* sign : {"*", "+", "?"}) {
      if (reader_.sees(sign))
        reader_.fail(fmt::format("has a {} that repeats nothing", sign));
    }
    if (reader_.take("("))
      return read_group(options);
    if (reader_.take("[")) {
      before_ = 0;
      const Case letter_case =
          options.ignores_case ? Case::kIgnored : Case::kKept;
      return {.text = read_class(reader_, letter_case)};
    }
    if (reader_.take("\\"))
      return read_escape(options);
    if (reader_.take("."))
      return any(options.dot_takes_newline);
    for (const char* anchor : {"^", "$"}) {
      if (reader_.take(anchor))
        return {.text = anchor, .is_one = false, .may_repeat = false};
    }
    return character(reader_.next(), options);
  }

  Atom any(bool takes_newline) {
    before_ = 0;
    return {.text = takes_newline ? "(?s:.)" : "."};
  }

  Atom character(char32_t c, const Options& options) {
    if (options.ignores_case &&
        (folds_to_several(c) || may_fold_together(before_, c)))
      reader_.refuse("(?i) with letters that fold to several");
    before_ = c;
    return {.text = literal(c)};
  }

  // Behind the backslash.
  Atom read_escape(const Options& options) {
    const char32_t c = reader_.peek();
    switch (c) {
      case 'A':
      case 'Z':
      case 'z':
      case 'G':
      case 'K':
        reader_.next();
        return {
            .text = fmt::format("\\{}", static_cast<char>(c)),
            .is_one = false,
            .may_repeat = false};
      case 'b':
      case 'B':
        reader_.next();
        return word_boundary(c == 'b');
      case 'R':
        reader_.next();
        before_ = 0;
        return {.text = "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"};
      case 'N':
      case 'O':
        reader_.next();
        return any(c == 'O');
      case 'X':
      case 'y':
      case 'Y':
      case 'g':
        reader_.refuse(fmt::format("\\{}", static_cast<char>(c)));
      case 'k':
        reader_.next();
        return named_backreference();
      default:
        break;
    }
    if (const auto type = read_type(reader_))
      return of_type(*type);
    if (c >= '1' && c <= '9') {
      const size_t begin = reader_.position();
      const int number = reader_.number().value();
      if (number <= groups_ || number <= 9)
        return backreference(number);
      reader_.return_to(begin);
    }
    return character(reader_.escaped_character(), options);
  }

  Atom of_type(const NamedType& named) {
    before_ = 0;
    const CharacterType type = outside_of_classes(named.type);
    const std::string& members = type.members;
    const std::string& lacking = type.lacking;
    const auto is_single = [](const std::string& text) {
      return text.starts_with("\\p{") || text.starts_with("\\P{")
                 ? text.find('}') + 1 == text.size()
                 : false;
    };
    if (named.is_negated)
      return {
          .text = is_single(lacking) ? lacking : fmt::format("[^{}]", members)};
    return {
        .text = is_single(members) ? members : fmt::format("[{}]", members)};
  }

  static Atom word_boundary(bool is_boundary) {
    const std::string word =
        fmt::format("[{}]", outside_of_classes(*character_type('w')).members);
    const char* const form = is_boundary
                                 ? "(?:(?<={0})(?!{0})|(?<!{0})(?={0}))"
                                 : "(?:(?<={0})(?={0})|(?<!{0})(?!{0}))";
    return {.text = fmt::format(fmt::runtime(form), word), .may_repeat = false};
  }

  Atom backreference(int number) {
    if (capture_ == Capture::kNamed)
      reader_.fail("refers to a group by number though groups have names");
    before_ = 0;
    return {.text = fmt::format("\\g{{{}}}", number)};
  }

  // \k<name> or \k'name', behind the k.
  Atom named_backreference() {
    const bool is_quoted = reader_.take("'");
    if (!is_quoted && !reader_.take("<"))
      return {.text = "k"};
    const std::string name(reader_.until(is_quoted ? "'" : ">"));
    before_ = 0;
    const auto found = names_.find(name);
    if (found != names_.end())
      return {.text = fmt::format("\\g{{{}}}", found->second)};
    reader_.refuse(fmt::format("\\k<{}>", name));
  }

  // Behind the (.
  Atom read_group(const Options& options) {
    if (reader_.sees("*"))
      reader_.refuse("a callout (*...)");
    if (!reader_.take("?")) {
      if (capture_ == Capture::kNamed)
        return group("(?:", options);
      ++groups_;
      return group("(", options);
    }
    for (const char* kind : {"<=", "<!", "=", "!", ":", ">"}) {
      if (!reader_.take(kind))
        continue;
      Atom atom = group(fmt::format("(?{}", kind), options);
      atom.may_repeat = kind[0] == ':' || kind[0] == '>';
      return atom;
    }
    if (reader_.take("<"))
      return named_group(">", options);
    if (reader_.take("'"))
      return named_group("'", options);
    for (const auto& [sign, what] :
         {std::pair("~", "an absent operator (?~...)"),
          std::pair("(", "a condition (?(...)...)"),
          std::pair("{", "a callout (?{...})")}) {
      if (reader_.sees(sign))
        reader_.refuse(what);
    }
    return options_group(options);
  }

  Atom named_group(const char* end, const Options& options) {
    const std::string name(reader_.until(end));
    if (name.empty())
      reader_.fail("has a group with an empty name");
    if (!names_.emplace(name, ++groups_).second)
      reader_.refuse(fmt::format("two groups of the name {}", name));
    return group("(", options);
  }

  Atom group(const std::string& begin, const Options& options) {
    std::string text = begin + alternatives(options);
    if (!reader_.take(")"))
      reader_.fail("has a ( without )");
    return {.text = text + ')'};
  }

  // (?i) to the end of the group around it, its alternatives included; (?i:...)
  Atom options_group(Options options) {
    bool value = true;
    while (!reader_.sees(")") && !reader_.sees(":")) {
      const char32_t c = reader_.next();
      if (c == '-')
        value = false;
      else if (c == 'i')
        options.ignores_case = value;
      else if (c == 'm')
        options.dot_takes_newline = value;
      else if (c == 'x')
        options.is_extended = value;
      else
        reader_.refuse(fmt::format("the group option {}", literal(c)));
    }
    const std::string begin = options.ignores_case ? "(?i:" : "(?-i:";
    if (reader_.take(":"))
      return group(begin, options);
    reader_.take(")");
    return {.text = begin + alternatives(options) + ')', .may_repeat = false};
  }
};

}  // namespace

std::string to_pcre2(const std::string& pattern, const JsonNode& place) {
  Translator all(pattern, Capture::kAll, place);
  std::string text = all.run();
  return all.has_names() ? Translator(pattern, Capture::kNamed, place).run()
                         : text;
}

}  // namespace brigade
