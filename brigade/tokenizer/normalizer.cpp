#include "brigade/tokenizer/normalizer.h"

#include <vector>

#include "brigade/tokenizer/byte_alphabet.h"
#include "brigade/tokenizer/character_normalizers.h"
#include "brigade/tokenizer/charsmap.h"
#include "brigade/tokenizer/json_parts.h"
#include "brigade/tokenizer/pattern.h"
#include "brigade/tokenizer/unicode.h"
#include "brigade/tokenizer/utf8.h"

namespace brigade {
namespace {

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalizationForm form) : form_(form) {}
  void normalize(NormalizedText& text, RegexScratch&) const override {
    text.text = normalize_unicode(text.text, form_);
  }

 private:
  const NormalizationForm form_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(const JsonNode& node)
      : prefix_(node.at("prepend").string()) {}
  void normalize(NormalizedText& text, RegexScratch&) const override {
    if (!text.text.empty())
      text.text.insert(0, prefix_);
  }

 private:
  const std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonNode& node)
      : pattern_(node.at("pattern")), content_(node.at("content").string()) {}
  void normalize(NormalizedText& text, RegexScratch& scratch) const override {
    size_t leading = 0;
    const char lead = text.text.empty() ? '\0' : text.text[0];
    text.text = pattern_.replace(
        text.text, content_, text.max_bytes, scratch, &leading);
    // What replaces several characters stands for the last one of them.
    if (leading > 0 && (content_.empty() || leading > utf8_length(lead)))
      text.at_start = false;
  }

 private:
  const Pattern pattern_;
  const std::string content_;
};

class LowercaseNormalizer : public Normalizer {
 public:
  void normalize(NormalizedText& text, RegexScratch&) const override {
    std::string out;
    out.reserve(text.text.size());
    for (size_t at = 0; at < text.text.size(); at += utf8_length(text.text[at]))
      append_lowercase(out, utf8_code_point(text.text, at));
    text.text = std::move(out);
  }
};

class StripNormalizer : public Normalizer {
 public:
  explicit StripNormalizer(const JsonNode& node)
      : left_(node.at("strip_left").boolean()),
        right_(node.at("strip_right").boolean()) {}

  void normalize(NormalizedText& text, RegexScratch&) const override {
    std::string& s = text.text;
    size_t begin = 0;
    while (left_ && begin < s.size() && white_space_at(s, begin))
      begin += utf8_length(s[begin]);
    size_t end = s.size();
    while (right_ && end > begin) {
      size_t last = end - 1;
      while (is_utf8_continuation(s[last]))
        --last;
      if (!white_space_at(s, last))
        break;
      end = last;
    }
    if (begin > 0)
      text.at_start = false;
    s = s.substr(begin, end - begin);
  }

 private:
  const bool left_;
  const bool right_;
  static bool white_space_at(const std::string& s, size_t at) {
    return is_white_space(utf8_code_point(s, at));
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void normalize(NormalizedText& text, RegexScratch&) const override {
    text.text = ByteAlphabet::encode(text.text);
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void normalize(NormalizedText& text, RegexScratch& scratch) const override {
    for (const auto& part : parts_)
      part->normalize(text, scratch);
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node, int depth) {
  require_depth(node, depth);
  const std::string& type = type_of(node);
  const auto unicode = [](NormalizationForm form) {
    return std::make_unique<UnicodeNormalizer>(form);
  };
  if (type == "Sequence") {
    const JsonNode list = node.at("normalizers");
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (size_t i = 0; i < list.size(); ++i)
      parts.push_back(make_normalizer(list.element(i), depth + 1));
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  if (type == "NFC")
    return unicode(NormalizationForm::kNfc);
  if (type == "NFD")
    return unicode(NormalizationForm::kNfd);
  if (type == "NFKC")
    return unicode(NormalizationForm::kNfkc);
  if (type == "NFKD")
    return unicode(NormalizationForm::kNfkd);
  if (type == "Prepend")
    return std::make_unique<PrependNormalizer>(node);
  if (type == "Replace")
    return std::make_unique<ReplaceNormalizer>(node);
  if (type == "Lowercase")
    return std::make_unique<LowercaseNormalizer>();
  if (type == "Strip")
    return std::make_unique<StripNormalizer>(node);
  if (type == "ByteLevel")
    return std::make_unique<ByteLevelNormalizer>();
  if (type == "StripAccents")
    return make_strip_accents_normalizer();
  if (type == "Nmt")
    return make_nmt_normalizer();
  if (type == "BertNormalizer")
    return make_bert_normalizer(node);
  if (type == "Precompiled")
    return make_charsmap_normalizer(node);
  refuse(node, fmt::format("the normalizer \"{}\"", type));
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  return make_normalizer(node, 0);
}

}  // namespace brigade
