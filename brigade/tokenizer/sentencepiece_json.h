// A SentencePiece .model as the tokenizer.json that means the same, as
// transformers converts it: for Brigade's own engine, which is faster, and for
// programs that read nothing else.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/tokenizer/added_tokens.h"
#include "brigade/tokenizer/sentencepiece_model.h"

namespace brigade {

// What of the model has no equal; absent: it can be converted. Llama 2's kind
// can, and what train_sentencepiece() makes: BPE with bytes for unknown
// characters, no normalisation and no symbols of the user's.
std::optional<std::string> reason_not_to_convert(
    const SentencePieceModel& model);

// As it stands in the "added_tokens" of a tokenizer.json.
nlohmann::json added_token_json(const AddedToken& token);

// What transformers reads beside a .model.
struct FilesBeside {
  std::vector<AddedToken> tokens;  // ascending by id, each once
  // What the template adds before and behind a text, where there is such a
  // token.
  std::optional<std::string> begin = "<s>";
  std::optional<std::string> end;
};

// Whether they hold a token that is no piece of the model.
bool adds_tokens(const FilesBeside& beside, const SentencePieceModel& model);

// From added_tokens.json and tokenizer_config.json in `folder`; those that are
// not there say nothing. Throws DataError naming file and place.
FilesBeside read_files_beside(const std::filesystem::path& folder);

// Precondition: !reason_not_to_convert(model).
nlohmann::json sentencepiece_json(
    const SentencePieceModel& model,
    const FilesBeside& beside);

// The tokenizer.json of a .model file and the files beside it; absent if it
// cannot be converted. Throws DataError for files that are damaged.
std::optional<std::string> convert_sentencepiece(
    const std::filesystem::path& path);

}  // namespace brigade
