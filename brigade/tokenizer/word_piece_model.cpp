// The "model" of type WordPiece: a word is cut from left to right into the
// longest tokens, of which all but the first carry a prefix ("##").
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/tokenizer/byte_trie.h"
#include "brigade/tokenizer/token_model.h"

namespace brigade {
namespace {

class WordPieceModel : public TokenModel {
 public:
  explicit WordPieceModel(const JsonNode& node);

  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::string summary() const override { return "WordPiece"; }

 private:
  void encode(
      std::string_view text,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const override;

  const std::string file_;
  const Vocabulary vocabulary_;
  const std::string prefix_;
  const std::string unk_token_;
  const size_t max_characters_;
  ByteTrie first_;
  ByteTrie continuing_;  // without the prefix

  // False when some part of the word is no token; `ids` is unchanged then.
  bool cut(std::string_view word, std::vector<int32_t>& ids) const;
};

WordPieceModel::WordPieceModel(const JsonNode& node)
    : file_(node.file()),
      vocabulary_(node.at("vocab")),
      prefix_(node.at("continuing_subword_prefix").string()),
      unk_token_(node.at("unk_token").string()),
      max_characters_(static_cast<size_t>(
          node.at("max_input_chars_per_word").integer(0, INT32_MAX))) {
  std::vector<ByteTrie::Entry> first;
  std::vector<ByteTrie::Entry> continuing;
  first.reserve(vocabulary_.ids().size());
  for (const auto& [text, id] : vocabulary_.ids()) {
    first.emplace_back(text, id);
    if (text.starts_with(prefix_))
      continuing.emplace_back(
          std::string_view(text).substr(prefix_.size()), id);
  }
  first_ = ByteTrie(std::move(first));
  continuing_ = ByteTrie(std::move(continuing));
}

bool WordPieceModel::cut(std::string_view word, std::vector<int32_t>& ids)
    const {
  const size_t size_before = ids.size();
  size_t at = 0;
  while (at < word.size()) {
    size_t longest = 0;
    int32_t id = -1;
    (at == 0 ? first_ : continuing_)
        .for_each_prefix(word.substr(at), [&](size_t length, int32_t token) {
          longest = length;
          id = token;
        });
    if (longest == 0) {
      ids.resize(size_before);
      return false;
    }
    ids.push_back(id);
    at += longest;
  }
  return true;
}

void WordPieceModel::encode(
    std::string_view text,
    ModelScratch&,
    std::vector<int32_t>& ids) const {
  // No word has more characters than bytes.
  const bool too_long =
      text.size() > max_characters_ && count_characters(text) > max_characters_;
  if (!too_long && cut(text, ids))
    return;
  const auto unknown = vocabulary_.id(unk_token_);
  if (!unknown)
    throw DataError(fmt::format(
        "[tokenizer] {}: at /model/unk_token: \"{}\" is not in /model/vocab, "
        "and a word of {} bytes needs it",
        file_,
        unk_token_,
        text.size()));
  ids.push_back(*unknown);
}

}  // namespace

std::unique_ptr<TokenModel> make_word_piece_model(const JsonNode& node) {
  return std::make_unique<WordPieceModel>(node);
}

}  // namespace brigade
