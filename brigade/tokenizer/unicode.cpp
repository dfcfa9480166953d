#include "brigade/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/later_unicode.h"

namespace brigade {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool in(char32_t c, char32_t low, char32_t high) {
  return c >= low && c <= high;
}

// Below this code point (the first combining mark) every text is NFC, and
// below 0x80 it is in every form.
bool has_lead_from(const std::string& text, unsigned char lead) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= lead)
      return true;
  }
  return false;
}

}  // namespace

bool is_white_space(char32_t c) {
  if (c < 0x80)
    return c == ' ' || in(c, 0x09, 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || in(c, 0x2000, 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t white_space_begin(std::string_view text, size_t at) {
  while (at > 0) {
    const size_t before = utf8_character_before(text, at);
    if (!is_white_space(utf8_code_point(text, before)))
      break;
    at = before;
  }
  return at;
}

size_t white_space_end(std::string_view text, size_t at) {
  while (at < text.size() && is_white_space(utf8_code_point(text, at)))
    at += utf8_length(text[at]);
  return at;
}

bool is_numeric(char32_t c) {
  if (c < 0x80)
    return in(c, '0', '9');
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return in(c, '!', '/') || in(c, ':', '@') || in(c, '[', '`') ||
           in(c, '{', '~');
  if (c == 0x166D || c == 0x111C9)  // no longer punctuation
    return true;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO &&
         !is_later_punctuation(c);
}

bool is_mark(char32_t c) {
  if (c < 0x300)
    return false;
  if (c == 0x1CF2 || c == 0x1CF3)  // no longer marks
    return true;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME &&
         !is_later_mark(c);
}

bool is_nonspacing_mark(char32_t c) {
  if (c < 0x300)
    return false;
  if (c == 0x1734)  // no longer one
    return true;
  return category(c) == UTF8PROC_CATEGORY_MN && !is_later_nonspacing_mark(c);
}

bool is_control(char32_t c) {
  if (c < 0x80)
    return c < 0x20 || c == 0x7F;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CO ||
         (kind == UTF8PROC_CATEGORY_CF && !is_later_format(c));
}

bool is_printable(char32_t c) {
  if (c < 0x80)
    return in(c, ' ', '~');
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_SO;
}

bool is_word_character(char32_t c) {
  if (c < 0x80)
    return in(c, 'a', 'z') || in(c, 'A', 'Z') || in(c, '0', '9') || c == '_';
  const auto kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_ND) ||
         kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_PC ||
         c == 0x200C || c == 0x200D ||
         // The alphabetic characters among the symbols: circled and squared
         // ones.
         in(c, 0x24B6, 0x24E9) || in(c, 0x1F130, 0x1F149) ||
         in(c, 0x1F150, 0x1F169) || in(c, 0x1F170, 0x1F189);
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the only character whose lower case is two characters
    out += "i\u0307";
    return;
  }
  const auto lower = utf8proc_tolower(static_cast<utf8proc_int32_t>(c));
  append_utf8(out, static_cast<char32_t>(lower));
}

size_t grapheme_end(std::string_view text, size_t at) {
  const auto is_ascii = [&](size_t offset) {
    return static_cast<signed char>(text[offset]) >= 0;
  };
  size_t end = at + utf8_length(text[at]);
  // The only cluster of two ASCII characters is CR LF.
  if (is_ascii(at) && end < text.size() && is_ascii(end) &&
      !(text[at] == '\r' && text[end] == '\n'))
    return end;
  utf8proc_int32_t state = 0;
  auto last = static_cast<utf8proc_int32_t>(utf8_code_point(text, at));
  while (end < text.size()) {
    const auto next = static_cast<utf8proc_int32_t>(utf8_code_point(text, end));
    if (utf8proc_grapheme_break_stateful(last, next, &state))
      break;
    last = next;
    end += utf8_length(text[end]);
  }
  return end;
}

std::string normalize_unicode(const std::string& text, NormalizationForm form) {
  const bool nfc = form == NormalizationForm::kNfc;
  if (!has_lead_from(text, nfc ? 0xCC : 0x80))
    return text;
  int options = UTF8PROC_STABLE;
  if (form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd)
    options |= UTF8PROC_COMPAT;
  options |= nfc || form == NormalizationForm::kNfkc ? UTF8PROC_COMPOSE
                                                     : UTF8PROC_DECOMPOSE;
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &raw,
      static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(
      raw, &std::free);
  if (size < 0)  // the text is valid, so this is memory
    throw std::bad_alloc();
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(size)};
}

}  // namespace brigade
