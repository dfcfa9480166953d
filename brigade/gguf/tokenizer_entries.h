// A tokenizer as llama.cpp's entries "tokenizer.*".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/gguf/format.h"

namespace brigade {

// What the model's config says.
struct TokenIds {
  int64_t vocab_size = 0;
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;
};

struct TokenizerEntries {
  std::vector<GgufEntry> entries;
  std::vector<std::string> notes;  // where llama.cpp does otherwise
};

// `spec`: what load_tokenizer() takes, or "": the model has none. The chat
// template comes from the files beside it. Byte-level BPE of the families of
// pre_tokenizer_name.h, SentencePiece's BPE as .model or as tokenizer.json, and
// plain bytes are written; throws ConfigError that names what llama.cpp has not
// of any other, and what loading it throws.
TokenizerEntries tokenizer_entries(
    const std::string& spec,
    const TokenIds& model);

}  // namespace brigade
