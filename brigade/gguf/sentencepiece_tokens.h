// Tokenizers that llama.cpp calls "llama": SentencePiece's BPE, which puts
// together the two neighbours whose piece has the highest score. Private to
// brigade/gguf.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "brigade/gguf/token_list.h"
#include "brigade/tokenizer/added_tokens.h"

namespace brigade {

// What a tokenizer of the kind adds to a text.
enum class SpacePrefix { kNone, kBeforeText };

struct SentencePieceTokens {
  SpacePrefix prefix = SpacePrefix::kNone;
  std::string difference;  // what llama.cpp does otherwise; empty: nothing
};

// From a tokenizer.json whose BPE falls back to bytes. Its merges have ranks,
// not scores: throws ConfigError where no scores have the same effect.
SentencePieceTokens add_sentencepiece_json(
    const nlohmann::json& tokenizer,
    TokenList& tokens);

// From a .model file and the tokens that the files beside it add, ascending by
// id.
SentencePieceTokens add_sentencepiece_model(
    const std::filesystem::path& path,
    const std::vector<AddedToken>& added,
    TokenList& tokens);

}  // namespace brigade
