// The "model" of type WordPiece: a word is cut from left to right into the
// longest tokens, of which all but the first carry a prefix ("##").
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/byte_trie.h"
#include "brigade/tokenizer/token_model.h"

namespace brigade {

class WordPieceModel : public TokenModel {
 public:
  explicit WordPieceModel(const JsonNode& node);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  void tokenize(
      const Piece& word,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::string summary() const override { return "WordPiece"; }

 private:
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

}  // namespace brigade
