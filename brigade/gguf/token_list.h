// The tokens of a tokenizer as GGUF lists them: one entry per id.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/gguf/format.h"
#include "brigade/tokenizer/sentencepiece_model.h"

namespace brigade {

// GGUF says of a token what SentencePiece says of a piece, and numbers its type
// (tokenizer.ggml.token_type) likewise.
using GgufToken = SentencePieceModel::Piece;
using PieceType = SentencePieceModel::PieceType;

// The tokens that transformers' tokenizer_config.json and GGUF name.
struct SpecialToken {
  const char* name;  // in tokenizer_config.json
  const char* key;   // behind "tokenizer.ggml."
};
inline constexpr SpecialToken kSpecialTokens[] = {
    {"bos_token", "bos_token_id"},
    {"eos_token", "eos_token_id"},
    {"unk_token", "unknown_token_id"},
    {"pad_token", "padding_token_id"}};

class TokenList {
 public:
  // `size`: rows of the model's embedding, all unused at first.
  explicit TokenList(int64_t size)
      : tokens_(
            static_cast<size_t>(size),
            GgufToken{.type = PieceType::kUnused}) {}

  // Throws ConfigError for a token beyond the model's vocabulary.
  void set(int64_t id, const GgufToken& token);
  bool holds(int64_t id) const {
    return id >= 0 && id < static_cast<int64_t>(tokens_.size());
  }
  const std::vector<GgufToken>& tokens() const { return tokens_; }

  // tokenizer.ggml.tokens and .token_type, ids without a token as "[PADid]".
  // Throws ConfigError where a text has two ids, which llama.cpp refuses.
  void add_to(std::vector<GgufEntry>& entries) const;
  // tokenizer.ggml.scores.
  void add_scores_to(std::vector<GgufEntry>& entries) const;

 private:
  std::vector<GgufToken> tokens_;
};

}  // namespace brigade
