#include "brigade/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/character_normalizers.h"
#include "brigade/tokenizer/charsmap.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/unicode.h"

namespace brigade {
namespace {

Normalizer in_form(NormalizationForm form) {
  return [form](NormalizedText& text, RegexScratch&) {
    text.text = normalize_unicode(text.text, form);
  };
}

Normalizer make_prepend(const JsonNode& node) {
  return [prefix = node.at("prepend").string()](
             NormalizedText& text, RegexScratch&) {
    if (!text.text.empty())
      text.text.insert(0, prefix);
  };
}

Normalizer make_replacing(const JsonNode& node) {
  auto pattern = std::make_shared<const Pattern>(node.at("pattern"));
  return [pattern, content = node.at("content").string()](
             NormalizedText& text, RegexScratch& scratch) {
    size_t leading = 0;
    const char lead = text.text.empty() ? '\0' : text.text[0];
    text.text =
        pattern->replace(text.text, content, text.max_bytes, scratch, &leading);
    // What replaces several characters stands for the last one of them.
    if (leading > 0 && (content.empty() || leading > utf8_length(lead)))
      text.at_start = false;
  };
}

Normalizer make_stripping(const JsonNode& node) {
  const bool left = node.at("strip_left").boolean();
  const bool right = node.at("strip_right").boolean();
  return [left, right](NormalizedText& text, RegexScratch&) {
    std::string& s = text.text;
    const size_t begin = left ? white_space_end(s, 0) : 0;
    if (begin > 0)
      text.at_start = false;
    s.erase(0, begin);
    if (right)
      s.resize(white_space_begin(s, s.size()));
  };
}

void spell_bytes(NormalizedText& text, RegexScratch&) {
  text.text = ByteAlphabet::encode(text.text);
}

}  // namespace

Normalizer make_normalizer(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  if (type == "Sequence") {
    std::vector<Normalizer> parts;
    for (const JsonNode& part : node.at("normalizers").elements())
      parts.push_back(make_normalizer(part, depth + 1));
    return [parts](NormalizedText& text, RegexScratch& scratch) {
      for (const Normalizer& part : parts)
        part(text, scratch);
    };
  }
  if (type == "NFC")
    return in_form(NormalizationForm::kNfc);
  if (type == "NFD")
    return in_form(NormalizationForm::kNfd);
  if (type == "NFKC")
    return in_form(NormalizationForm::kNfkc);
  if (type == "NFKD")
    return in_form(NormalizationForm::kNfkd);
  if (type == "Prepend")
    return make_prepend(node);
  if (type == "Replace")
    return make_replacing(node);
  if (type == "Lowercase")
    return lower_case;
  if (type == "Strip")
    return make_stripping(node);
  if (type == "ByteLevel")
    return spell_bytes;
  if (type == "StripAccents")
    return strip_accents;
  if (type == "Nmt")
    return normalize_as_nmt;
  if (type == "BertNormalizer")
    return make_bert_normalizer(node);
  if (type == "Precompiled")
    return make_charsmap_normalizer(node);
  refuse(node, fmt::format("the normalizer \"{}\"", type));
}

}  // namespace brigade
