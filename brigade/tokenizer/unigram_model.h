// The "model" of type Unigram: every token has a score, the logarithm of its
// probability, and a word is cut so that the sum of the scores is highest.
// Source: Kudo, "Subword Regularization", 2018.
//
// The best path to each position is found from left to right, over a trie of
// all tokens: time is the text's length times at most the longest token's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/byte_trie.h"
#include "brigade/tokenizer/token_model.h"

namespace brigade {

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(const JsonNode& node);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  void tokenize(
      const Piece& word,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::string summary() const override { return "Unigram"; }

 private:
  struct Scratch;
  class Search;

  const std::string file_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  ByteTrie trie_;
  double unk_score_ = 0;
  int32_t unk_id_ = -1;  // -1: there is none
  bool byte_fallback_ = false;
  // Tokens <0x00> to <0xFF>, -1 where the vocabulary lacks them.
  std::array<int32_t, 256> byte_ids_{};

  void read_vocabulary(const JsonNode& list);
  void encode(
      std::string_view text,
      Scratch& scratch,
      std::vector<int32_t>& ids) const;
  // Appends the tokens of a run of unknown characters.
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;
  [[noreturn]] void fail_unknown(char32_t c) const;
};

}  // namespace brigade
