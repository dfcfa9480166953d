// The "model" of a tokenizer.json: gives the tokens of one word. There are
// three kinds: BPE, Unigram and WordPiece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/json/node.h"
#include "brigade/tokenizer/pre_tokenizer.h"
#include "brigade/tokenizer/vocabulary.h"
#include "brigade/tokenizer/word_cache.h"

namespace brigade {

// What one thread needs to tokenize; a model may derive a kind with more.
struct ModelScratch {
  virtual ~ModelScratch() = default;
  WordCache cache;
};

// Immutable once made; thread-safe with one ModelScratch per thread.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  virtual std::unique_ptr<ModelScratch> make_scratch() const {
    return std::make_unique<ModelScratch>();
  }
  // Appends the tokens of one word to `ids`; `scratch` is from make_scratch().
  // Throws DataError when the word needs an unknown token that the vocabulary
  // lacks.
  void tokenize(
      const Piece& word,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const;
  virtual const Vocabulary& vocabulary() const = 0;
  // A few words for people: "BPE with 50000 merges".
  virtual std::string summary() const = 0;

 private:
  // tokenize() of a word that the cache does not know, spelled by ByteAlphabet
  // where it is byte-level.
  virtual void encode(
      std::string_view text,
      ModelScratch& scratch,
      std::vector<int32_t>& ids) const = 0;
};

// By "type"; old files without one are recognised by their keys. Throws
// DataError at the JSON path of a part that is wrong or not supported.
std::unique_ptr<TokenModel> make_token_model(const JsonNode& node);
// Two of its kinds.
std::unique_ptr<TokenModel> make_unigram_model(const JsonNode& node);
std::unique_ptr<TokenModel> make_word_piece_model(const JsonNode& node);

}  // namespace brigade
