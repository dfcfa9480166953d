// Checks every layout that a parser accepts, for any input.
#pragma once

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/data/token_format.h"

namespace brigade {

inline void check_layout(const TokenFileLayout& layout, uint64_t file_bytes) {
  const uint64_t item_bytes = token_bytes(layout.type);
  BRIGADE_ASSERT(layout.first_byte <= file_bytes);
  BRIGADE_ASSERT(
      layout.num_tokens <= (file_bytes - layout.first_byte) / item_bytes);
  const DocumentIndex& documents = layout.documents;
  // Any number of rows may be empty.
  const uint64_t count = std::min<uint64_t>(documents.size(), 1000);
  uint64_t previous = 0;
  for (uint64_t d = 0; d <= count; ++d) {
    BRIGADE_ASSERT(documents.begin(d) >= previous);
    previous = documents.begin(d);
  }
  BRIGADE_ASSERT(documents.begin(documents.size()) == layout.num_tokens);
  for (uint64_t token = 0; token < layout.num_tokens && token < 1000; ++token) {
    const uint64_t d = documents.document_of(token);
    BRIGADE_ASSERT(documents.begin(d) <= token);
    BRIGADE_ASSERT(token < documents.begin(d + 1));
  }
}

}  // namespace brigade
