#include "brigade/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <new>

#include "brigade/base/error.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/json_parts.h"

namespace brigade {
namespace {

// Bounds one match of a pattern that backtracks without end to a fraction of a
// second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackBytes = size_t{64} << 20;  // reserved, not touched

// PCRE2 10.42 still counts U+180E as \s, and leaves marks and connectors out
// of \w. Oniguruma's \w, unlike others, has the numbers of Latin-1.
constexpr const char* kSpace =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}"
    "\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr const char* kWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
    "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
// Rust's \w, for the Whitespace pre-tokenizer.
constexpr const char* kRustWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// Rewrites one escape, pattern[i] being the character after the backslash.
std::string rewrite_escape(char c, bool in_class, const JsonNode& place) {
  const std::string word = fmt::format("[{}]", kWord);
  switch (c) {
    case 's':
      return in_class ? kSpace : fmt::format("[{}]", kSpace);
    case 'S':
      return in_class ? "\\P{White_Space}" : fmt::format("[^{}]", kSpace);
    case 'w':
      return in_class ? kWord : word;
    case 'W':
      if (in_class)
        refuse(place, "\\W inside a character class");
      return fmt::format("[^{}]", kWord);
    case 'h':
      return in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
    case 'H':
      if (in_class)
        refuse(place, "\\H inside a character class");
      return "[^0-9a-fA-F]";
    case 'b':
      if (in_class)
        return "\\x08";
      return fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
    case 'B':
      return fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
    default:
      return {'\\', c};
  }
}

// The name of \p{Name}: a script means its own characters, where PCRE2 would
// also take those that the script shares with others (\p{scx:Name}).
std::string rewrite_property(std::string name) {
  if (name.find(':') != std::string::npos || name.size() <= 2)
    return name;
  const std::string script = "\\p{sc:" + name + "}";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(script.data()),
      script.size(),
      PCRE2_UTF,
      &error,
      &offset,
      nullptr);
  if (!code)
    return name;
  pcre2_code_free(code);
  return "sc:" + name;
}

}  // namespace

std::string to_pcre2(const std::string& pattern, const JsonNode& place) {
  std::string out;
  bool in_class = false;
  size_t class_begin = 0;  // where a ']' would be the first member
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 'u' && i + 4 < pattern.size()) {
        out += fmt::format("\\x{{{}}}", pattern.substr(i + 1, 4));
        i += 4;
      } else if (
          (next == 'p' || next == 'P') && i + 1 < pattern.size() &&
          pattern[i + 1] == '{') {
        const size_t end = pattern.find('}', i);
        if (end == std::string::npos)
          place.fail("a property \\p{...} is not closed");
        const bool negated = pattern[i + 2] == '^';
        const size_t begin = i + (negated ? 3 : 2);
        out += (next == 'P') != negated ? "\\P{" : "\\p{";
        out += rewrite_property(pattern.substr(begin, end - begin)) + "}";
        i = end;
      } else if (static_cast<signed char>(next) < 0) {
        out += next;  // an escaped character of several bytes is itself
      } else {
        out += rewrite_escape(next, in_class, place);
      }
      continue;
    }
    if (in_class) {
      if (c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':') {
        const size_t end = pattern.find(":]", i);
        if (end == std::string::npos)
          place.fail("a character class is not closed");
        out.append(pattern, i, end + 2 - i);
        i = end + 1;
        continue;
      }
      if (c == '[')
        refuse(place, "a character class inside another");
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&')
        refuse(place, "the intersection && of character classes");
      if (c == ']' && i != class_begin)
        in_class = false;
    } else if (c == '[') {
      in_class = true;
      class_begin = i + 1;
      if (class_begin < pattern.size() && pattern[class_begin] == '^')
        ++class_begin;
    } else if (c == '(' && pattern.compare(i, 2, "(?") == 0) {
      // Ruby's (?m) lets a dot match a newline, which PCRE2 calls (?s).
      size_t j = i + 2;
      std::string flags;
      while (j < pattern.size() &&
             (std::isalpha(static_cast<unsigned char>(pattern[j])) ||
              pattern[j] == '-')) {
        flags += pattern[j] == 'm' ? 's' : pattern[j];
        ++j;
      }
      if (!flags.empty() && j < pattern.size() &&
          (pattern[j] == ')' || pattern[j] == ':')) {
        out += "(?" + flags;
        i = j - 1;
        continue;
      }
    }
    out += c;
  }
  return out;
}

struct RegexScratch::Buffers {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~Buffers() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : buffers_(std::make_unique<Buffers>()) {
  buffers_->data = pcre2_match_data_create(1, nullptr);
  buffers_->context = pcre2_match_context_create(nullptr);
  buffers_->stack = pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
  if (!buffers_->data || !buffers_->context)
    throw std::bad_alloc();
  pcre2_set_match_limit(buffers_->context, kMatchLimit);
  // Without JIT there is no stack to assign.
  if (buffers_->stack)
    pcre2_jit_stack_assign(buffers_->context, nullptr, buffers_->stack);
}

RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string where;  // file, path and pattern, for errors while matching

  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern, const JsonNode& place) {
  compile(to_pcre2(pattern, place), place);
}

Regex Regex::words(const JsonNode& place) {
  Regex regex;
  regex.compile(fmt::format("[{0}]+|[^{0}{1}]+", kRustWord, kSpace), place);
  return regex;
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

void Regex::compile(const std::string& pattern, const JsonNode& place) {
  code_ = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A ^ or $ of Ruby is that of a line.
  code_->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()),
      pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
      &error,
      &offset,
      nullptr);
  if (!code_->code) {
    place.fail(fmt::format(
        "the regular expression does not compile: {} near byte {} of {}",
        error_text(error),
        offset,
        pattern));
  }
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
  code_->where = fmt::format(
      "[tokenizer] {}: at {}: the regular expression {}",
      place.file(),
      place.pointer(),
      pattern);
}

bool Regex::find(
    std::string_view text,
    size_t offset,
    RegexScratch& scratch,
    RegexMatch& match) const {
  auto& buffers = *scratch.buffers_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto run = code_->jit ? pcre2_jit_match : pcre2_match;
  const int result =
      run(code_->code,
          subject,
          text.size(),
          offset,
          PCRE2_NO_UTF_CHECK,
          buffers.data,
          buffers.context);
  if (result == PCRE2_ERROR_NOMATCH)
    return false;
  if (result < 0) {
    throw DataError(fmt::format(
        "{} failed {} bytes into a text of {} bytes: {}",
        code_->where,
        offset,
        text.size(),
        error_text(result)));
  }
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(buffers.data);
  match = {.begin = range[0], .end = range[1]};
  // With \K a match can begin before the offset or after its own end.
  match.end = std::max(match.end, offset);
  match.begin = std::clamp(match.begin, offset, match.end);
  return true;
}

}  // namespace brigade
