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
  regex.compile(
      fmt::format("[{0}]+|[^{0}{1}]+", kRustWord, space_members()), place);
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
  if (error == PCRE2_ERROR_LOOKBEHIND_NOT_FIXED_LENGTH)
    refuse(place, "a look-behind of variable length in " + pattern);
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
