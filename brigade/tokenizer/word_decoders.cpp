#include "brigade/tokenizer/word_decoders.h"

#include <string_view>
#include <utility>

namespace brigade {
namespace {

void replace_all(
    std::string& text,
    std::string_view old_part,
    std::string_view new_part) {
  size_t at = text.find(old_part);
  if (at == std::string::npos)
    return;
  std::string out;
  size_t copied = 0;
  for (; at != std::string::npos; at = text.find(old_part, copied)) {
    out.append(text, copied, at - copied).append(new_part);
    copied = at + old_part.size();
  }
  text = out.append(text, copied);
}

class WordPieceDecoder : public Decoder {
 public:
  explicit WordPieceDecoder(const JsonNode& node)
      : prefix_(node.at("prefix").string()),
        cleans_up_(node.at("cleanup").boolean()) {}

  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix_))
          tokens[i].erase(0, prefix_.size());
        else
          tokens[i].insert(0, " ");
      }
      if (cleans_up_)
        clean_up(tokens[i]);
    }
  }

 private:
  const std::string prefix_;
  const bool cleans_up_;

  // The engine's list, in its order.
  static void clean_up(std::string& token) {
    static constexpr std::pair<std::string_view, std::string_view> kParts[] = {
        {" .", "."},
        {" ?", "?"},
        {" !", "!"},
        {" ,", ","},
        {" ' ", "'"},
        {" n't", "n't"},
        {" 'm", "'m"},
        {" do not", " don't"},
        {" 's", "'s"},
        {" 've", "'ve"},
        {" 're", "'re"}};
    for (const auto& [old_part, new_part] : kParts)
      replace_all(token, old_part, new_part);
  }
};

class SuffixDecoder : public Decoder {
 public:
  explicit SuffixDecoder(const JsonNode& node)
      : suffix_(node.at("suffix").string()) {
    if (suffix_.empty())
      node.at("suffix").fail("the suffix is empty");
  }

  void decode(std::vector<std::string>& tokens, RegexScratch&) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
  }

 private:
  const std::string suffix_;
};

}  // namespace

std::unique_ptr<Decoder> make_word_piece_decoder(const JsonNode& node) {
  return std::make_unique<WordPieceDecoder>(node);
}

std::unique_ptr<Decoder> make_suffix_decoder(const JsonNode& node) {
  return std::make_unique<SuffixDecoder>(node);
}

}  // namespace brigade
