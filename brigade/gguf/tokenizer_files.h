// The tokenizer of a GGUF file as the files that Brigade and transformers read.
#pragma once

#include <map>
#include <string>

#include "brigade/gguf/reader.h"

namespace brigade {

// tokenizer.json and tokenizer_config.json; empty for a file without a
// tokenizer. Its tokens are those of llama.cpp, which applies no normalizer.
// Throws DataError naming a kind of tokenizer or pre-tokenizer that is not
// read, or lists that do not fit each other.
std::map<std::string, std::string> tokenizer_files(const GgufFile& file);

}  // namespace brigade
