// The "decoder" of a tokenizer.json: turns the texts of tokens into text.
// Immutable once made; thread-safe with one RegexScratch per thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "brigade/json/node.h"
#include "brigade/tokenizer/regex.h"

namespace brigade {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Rewrites the tokens; the text is their concatenation.
  virtual void decode(std::vector<std::string>& tokens, RegexScratch& scratch)
      const = 0;
};

// ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, WordPiece,
// BPEDecoder, Sequence; anything else is refused by name (DataError).
std::unique_ptr<Decoder> make_decoder(const JsonNode& node);

}  // namespace brigade
