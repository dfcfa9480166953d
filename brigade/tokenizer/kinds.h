// Two of the kinds of tokenizers, behind load_tokenizer(): private to
// tokenizer.cpp.
#pragma once

#include <filesystem>
#include <memory>

#include "brigade/tokenizer/tokenizer.h"
#include "brigade/tokenizer/tokens_beside.h"

namespace brigade {

std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// A SentencePiece .model (unigram or BPE), run by libsentencepiece itself; of
// what is beside it the names of bos and eos, and whether they are added.
// Throws DataError naming the file when it is not one.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    std::filesystem::path path,
    const TokensBeside& beside);

}  // namespace brigade
