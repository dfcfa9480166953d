// Regular expressions of tokenizer.json, run by PCRE2's JIT.
//
// The patterns are written for Oniguruma, which Hugging Face uses: oniguruma.h
// rewrites them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "brigade/base/utf8.h"

// PCRE2's types.
struct pcre2_real_code_8;
struct pcre2_real_jit_stack_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace brigade {

class JsonNode;

template <typename T>
using Pcre2Pointer = std::unique_ptr<T, void (*)(T*)>;

// What one thread needs to match: buffers and the JIT's stack. Not shared.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  Pcre2Pointer<pcre2_real_match_data_8> data_;
  Pcre2Pointer<pcre2_real_match_context_8> context_;
  Pcre2Pointer<pcre2_real_jit_stack_8> stack_;
};

struct RegexMatch {
  size_t begin = 0;
  size_t end = 0;
};

class Regex {
 public:
  // Oniguruma's syntax. Throws DataError at `place` for a pattern that does
  // not compile or that has no equivalent.
  Regex(const std::string& pattern, const JsonNode& place);
  // Rust's `\w+|[^\w\s]+`, the pattern of the Whitespace pre-tokenizer.
  static Regex words(const JsonNode& place);

  // The first match at or after `offset` (a character's begin) of `text`,
  // which must be valid UTF-8. Throws DataError when the match limit is
  // reached: the pattern backtracks without end on this text.
  bool find(
      std::string_view text,
      size_t offset,
      RegexScratch& scratch,
      RegexMatch& match) const;

 private:
  Regex();
  void compile(const std::string& pattern, const JsonNode& place);
  Pcre2Pointer<pcre2_real_code_8> code_;
  bool has_jit_ = false;
  std::string where_;  // file, path and pattern, for errors while matching
};

// Calls found(begin, end) for every match from left to right. An empty match
// at the end of the one before is skipped, as Oniguruma's iterator does.
template <typename Found>
void for_each_match(
    const Regex& regex,
    std::string_view text,
    RegexScratch& scratch,
    Found&& found) {
  RegexMatch match;
  size_t offset = 0;
  size_t last_end = std::string_view::npos;
  const auto next_character = [&](size_t at) {
    do
      ++at;
    while (at < text.size() && is_utf8_continuation(text[at]));
    return at;
  };
  while (offset <= text.size() && regex.find(text, offset, scratch, match)) {
    if (match.begin == match.end && match.end == last_end) {
      offset = next_character(offset);
      continue;
    }
    found(match.begin, match.end);
    offset = last_end = match.end;
  }
}

}  // namespace brigade
