// The "normalizer" of a tokenizer.json: rewrites text before it is cut.
#pragma once

#include <functional>
#include <string>

#include "brigade/json/node.h"
#include "brigade/tokenizer/regex.h"

namespace brigade {

// A piece of text on its way through the tokenizer.
struct NormalizedText {
  std::string text;
  // Whether its first character stands for the first one of the whole input,
  // which Metaspace's prepend_scheme "first" depends on.
  bool at_start = false;
  // Normalizers that would make it longer fail.
  size_t max_bytes = std::string::npos;
};

// Thread-safe with one RegexScratch per thread.
using Normalizer =
    std::function<void(NormalizedText& text, RegexScratch& scratch)>;

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents, Nmt,
// BertNormalizer, Precompiled, ByteLevel, Sequence; anything else is refused by
// name (DataError).
// `depth`: the Sequences that it is in.
Normalizer make_normalizer(const JsonNode& node, int depth = 0);

}  // namespace brigade
