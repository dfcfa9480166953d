// The "normalizer" of a tokenizer.json: rewrites text before it is cut.
// Immutable once made; thread-safe with one RegexScratch per thread.
#pragma once

#include <memory>
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

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void normalize(NormalizedText& text, RegexScratch& scratch) const = 0;
};

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents, Nmt,
// BertNormalizer, Precompiled, ByteLevel, Sequence; anything else is refused by
// name (DataError).
std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node);

}  // namespace brigade
