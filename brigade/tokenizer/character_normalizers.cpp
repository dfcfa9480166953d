#include "brigade/tokenizer/character_normalizers.h"

#include <utility>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

// Calls map(out, c) for every character, which appends what stands for it. A
// first character that is removed takes the beginning of the input along.
template <typename Map>
void rewrite(NormalizedText& text, Map&& map) {
  std::string out;
  out.reserve(text.text.size());
  for (size_t at = 0; at < text.text.size(); at += utf8_length(text.text[at])) {
    map(out, utf8_code_point(text.text, at));
    if (at == 0 && out.empty())
      text.at_start = false;
  }
  text.text = std::move(out);
}

bool nmt_removes(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
         c == 0x7F || c == 0x8F || c == 0x9F;
}

bool nmt_makes_space(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

// The blocks of ideographs that BERT puts spaces around.
bool is_chinese(char32_t c) {
  return (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

void clean(std::string& out, char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r')
    out += ' ';
  else if (c != 0xFFFD && !is_control(c))
    append_utf8(out, is_white_space(c) ? U' ' : c);
}

}  // namespace

void lower_case(NormalizedText& text, RegexScratch&) {
  rewrite(text, append_lowercase);
}

void strip_accents(NormalizedText& text, RegexScratch&) {
  rewrite(text, [](std::string& out, char32_t c) {
    if (!is_mark(c))
      append_utf8(out, c);
  });
}

void normalize_as_nmt(NormalizedText& text, RegexScratch&) {
  rewrite(text, [](std::string& out, char32_t c) {
    if (!nmt_removes(c))
      append_utf8(out, nmt_makes_space(c) ? U' ' : c);
  });
}

Normalizer make_bert_normalizer(const JsonNode& node) {
  const bool cleans = node.at("clean_text").boolean();
  const bool spaces_chinese = node.at("handle_chinese_chars").boolean();
  const bool lowers = node.at("lowercase").boolean();
  const bool strips_accents = node.boolean_at("strip_accents", lowers);
  return [=](NormalizedText& text, RegexScratch&) {
    if (cleans)
      rewrite(text, clean);
    if (spaces_chinese) {
      rewrite(text, [](std::string& out, char32_t c) {
        const bool chinese = is_chinese(c);
        if (chinese)
          out += ' ';
        append_utf8(out, c);
        if (chinese)
          out += ' ';
      });
    }
    if (strips_accents) {
      text.text = normalize_unicode(text.text, NormalizationForm::kNfd);
      rewrite(text, [](std::string& out, char32_t c) {
        if (!is_nonspacing_mark(c))
          append_utf8(out, c);
      });
    }
    if (lowers)
      rewrite(text, append_lowercase);
  };
}

}  // namespace brigade
