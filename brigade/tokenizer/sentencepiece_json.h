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
#include "brigade/tokenizer/tokens_beside.h"

namespace brigade {

// What of the model has no equal; absent: it can be converted. Llama 2's kind
// can, and what train_sentencepiece() makes: BPE with bytes for unknown
// characters, no normalisation and no symbols of the user's.
std::optional<std::string> reason_not_to_convert(
    const SentencePieceModel& model);

// As it stands in the "added_tokens" of a tokenizer.json.
nlohmann::json added_token_json(const AddedToken& token);

// With the model's own names of bos and eos where no file gives any.
TokensBeside read_tokens_beside(
    const std::filesystem::path& path,
    const SentencePieceModel& model);

// Whether all tokens named beside a model are symbols of it such as <s>, that
// the library treats as such or that stand for nothing in a text: neither
// ordinary pieces nor what is no piece of it.
bool names_only_symbols(
    const TokensBeside& beside,
    const SentencePieceModel& model);

// The first listed token that is no piece of the model, if there is one.
std::optional<std::string> listed_new_token(
    const TokensBeside& beside,
    const SentencePieceModel& model);

struct SentencePieceJsonOptions {
  std::vector<AddedToken> tokens;  // ascending by id, each once
  // What the template adds before and behind a text, where there is such a
  // token.
  std::optional<std::string> begin;
  std::optional<std::string> end;
  // Of Metaspace, which puts a space before a text that begins with none.
  // Empty: before every text and behind every added token, as the library and
  // llama.cpp do.
  std::string prepend_scheme;
};

// Precondition: !reason_not_to_convert(model).
nlohmann::json sentencepiece_json(
    const SentencePieceModel& model,
    const SentencePieceJsonOptions& options);

// The same of a model with the files beside it, as transformers 5's
// LlamaTokenizer has it; where they only name symbols, as the library has it.
// `file` is what errors call it.
nlohmann::json sentencepiece_json(
    const SentencePieceModel& model,
    const TokensBeside& beside,
    const std::string& file);

// The tokenizer.json of a .model file and the files beside it; absent if it
// cannot be converted. Throws DataError for files that are damaged.
std::optional<std::string> convert_sentencepiece(
    const std::filesystem::path& path);

}  // namespace brigade
