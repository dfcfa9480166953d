// SentencePiece's precompiled character map, which a tokenizer.json holds in
// base64 as the normalizer "Precompiled": replacements for characters and short
// sequences of them.
//
// The format: the size of a trie in bytes (u32, little-endian), the trie, and
// the replacements, each ended by a zero byte. The trie is a double array of
// darts-clone: u32 units, of which a leaf's value is an offset into the
// replacements. Source: SentencePiece's normalizer.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/tokenizer/normalizer.h"

namespace brigade {

// Immutable, thread-safe.
class Charsmap {
 public:
  // `blob` is the map itself, no longer base64. Throws DataError at `place` for
  // a map that is cut off or has an index that is out of range.
  Charsmap(std::string_view blob, const JsonNode& place);

  // What replaces `text` if some key begins it: of several the shortest, as
  // Hugging Face's engine does.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

Normalizer make_charsmap_normalizer(const JsonNode& node);

}  // namespace brigade
