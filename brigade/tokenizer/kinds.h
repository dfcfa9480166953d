// Two of the kinds of tokenizers, behind load_tokenizer(): private to
// tokenizer.cpp.
#pragma once

#include <filesystem>
#include <memory>

#include "brigade/tokenizer/tokenizer.h"

namespace brigade {

std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// A SentencePiece .model (unigram or BPE), run by libsentencepiece itself.
// Throws DataError naming the file when it is not one.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(
    std::filesystem::path path);

}  // namespace brigade
