#include "brigade/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>

#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool in(char32_t c, char32_t low, char32_t high) {
  return c >= low && c <= high;
}

struct CodePoints {
  char32_t first;
  char32_t last;
};

// Punctuation by now, but not by the table of Hugging Face's engine, which is
// that of Unicode 8; sorted.
constexpr CodePoints kLaterPunctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},
    {0xC77, 0xC77},     {0xC84, 0xC84},     {0x1B7D, 0x1B7E},
    {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},   {0x10EAD, 0x10EAD},
    {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C},
    {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946},
    {0x119E2, 0x119E2}, {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C},
    {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F},
    {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

bool is_later_punctuation(char32_t c) {
  const auto* const range = std::lower_bound(
      std::begin(kLaterPunctuation),
      std::end(kLaterPunctuation),
      c,
      [](const CodePoints& entry, char32_t value) {
        return entry.last < value;
      });
  return range != std::end(kLaterPunctuation) && range->first <= c;
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
