// The "decoder" of a tokenizer.json: turns the texts of tokens into text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "brigade/json/node.h"
#include "brigade/tokenizer/regex.h"

namespace brigade {

// Rewrites the tokens; the text is their concatenation. Thread-safe with one
// RegexScratch per thread.
using Decoder = std::function<
    void(std::vector<std::string>& tokens, RegexScratch& scratch)>;

// ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece,
// BPEDecoder, Sequence; anything else is refused by name (DataError).
// `depth`: the Sequences that it is in.
Decoder make_decoder(const JsonNode& node, int depth = 0);

}  // namespace brigade
