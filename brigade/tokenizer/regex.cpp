#include "brigade/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <new>

#include "brigade/base/error.h"
#include "brigade/json/node.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/oniguruma.h"
#include "brigade/tokenizer/oniguruma_class.h"

namespace brigade {
namespace {

// Bounds one match of a pattern that backtracks without end to a fraction of a
// second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr size_t kJitStackBytes = size_t{64} << 20;  // reserved, not touched

// Rust's \w, for the Whitespace pre-tokenizer.
constexpr const char* kRustWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free),
      context_(pcre2_match_context_create(nullptr), &pcre2_match_context_free),
      stack_(
          pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr),
          &pcre2_jit_stack_free) {
  if (!data_ || !context_)
    throw std::bad_alloc();
  pcre2_set_match_limit(context_.get(), kMatchLimit);
  // Without JIT there is no stack to assign.
  if (stack_)
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

Regex::Regex() : code_(nullptr, &pcre2_code_free) {}

Regex::Regex(const std::string& pattern, const JsonNode& place) : Regex() {
  compile(to_pcre2(pattern, place), place);
}

Regex Regex::words(const JsonNode& place) {
  Regex regex;
  regex.compile(
      fmt::format("[{0}]+|[^{0}{1}]+", kRustWord, space_members()), place);
  return regex;
}

void Regex::compile(const std::string& pattern, const JsonNode& place) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A ^ or $ of Ruby is that of a line.
  code_.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(pattern.data()),
      pattern.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
      &error,
      &offset,
      nullptr));
  if (error == PCRE2_ERROR_LOOKBEHIND_NOT_FIXED_LENGTH)
    refuse(place, "a look-behind of variable length in " + pattern);
  if (!code_) {
    place.fail(fmt::format(
        "the regular expression does not compile: {} near byte {} of {}",
        error_text(error),
        offset,
        pattern));
  }
  has_jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  where_ = fmt::format(
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
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto run = has_jit_ ? pcre2_jit_match : pcre2_match;
  const int result =
      run(code_.get(),
          subject,
          text.size(),
          offset,
          PCRE2_NO_UTF_CHECK,
          scratch.data_.get(),
          scratch.context_.get());
  if (result == PCRE2_ERROR_NOMATCH)
    return false;
  if (result < 0) {
    throw DataError(fmt::format(
        "{} failed {} bytes into a text of {} bytes: {}",
        where_,
        offset,
        text.size(),
        error_text(result)));
  }
  const PCRE2_SIZE* const range =
      pcre2_get_ovector_pointer(scratch.data_.get());
  match = {.begin = range[0], .end = range[1]};
  // With \K a match can begin before the offset or after its own end.
  match.end = std::max(match.end, offset);
  match.begin = std::clamp(match.begin, offset, match.end);
  return true;
}

}  // namespace brigade
