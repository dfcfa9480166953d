#include "brigade/data/token_format.h"

#include <bit>

#include "brigade/base/check.h"
#include "brigade/data/byte_reader.h"

namespace brigade {

static_assert(
    std::endian::native == std::endian::little,
    "token files are little-endian and read in place");

const char* to_string(TokenType type) {
  static constexpr const char* kNames[] = {
      "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64"};
  static_assert(std::size(kNames) == static_cast<size_t>(TokenType::kU64) + 1);
  return kNames[static_cast<size_t>(type)];
}

uint64_t token_bytes(TokenType type) {
  return uint64_t{1} << static_cast<int>(type) / 2;  // each width twice
}

DocumentIndex::DocumentIndex(uint64_t num_tokens)
    : DocumentIndex(1, num_tokens, Rows{num_tokens}) {}

DocumentIndex DocumentIndex::rows(uint64_t num_rows, uint64_t row_tokens) {
  return {num_rows, num_rows * row_tokens, Rows{row_tokens}};
}

DocumentIndex DocumentIndex::cumulative_ends(std::span<const std::byte> ends) {
  const uint64_t size = ends.size() / sizeof(uint64_t);
  const uint64_t num_tokens = size == 0 ? 0 : load_at<uint64_t>(ends, size - 1);
  return {size, num_tokens, Ends{ends}};
}

DocumentIndex DocumentIndex::growing_ends(
    std::span<const std::byte> ends,
    uint64_t num_tokens) {
  // Documents that end before the last token.
  uint64_t low = 0;
  uint64_t high = ends.size() / sizeof(uint64_t);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (load_at<uint64_t>(ends, middle) < num_tokens)
      low = middle + 1;
    else
      high = middle;
  }
  return {low + 1, num_tokens, Ends{ends}};
}

DocumentIndex DocumentIndex::sequences(
    std::span<const std::byte> first_sequences,
    std::span<const std::byte> byte_offsets,
    uint64_t token_size_bytes,
    uint64_t num_tokens) {
  const uint64_t entries = first_sequences.size() / sizeof(int64_t);
  BRIGADE_ASSERT(entries > 0, "a document index without its last entry");
  return {
      entries - 1,
      num_tokens,
      Sequences{first_sequences, byte_offsets, token_size_bytes}};
}

uint64_t DocumentIndex::begin(uint64_t document) const {
  BRIGADE_ASSERT(document <= size_, "document {} of {}", document, size_);
  if (document == size_)
    return num_tokens_;
  if (const auto* rows = std::get_if<Rows>(&layout_))
    return document * rows->row_tokens;
  if (const auto* ends = std::get_if<Ends>(&layout_))
    return document == 0 ? 0 : load_at<uint64_t>(ends->ends, document - 1);
  const auto& sequences = std::get<Sequences>(layout_);
  const auto first = load_at<uint64_t>(sequences.first_sequences, document);
  // A document that begins after the last sequence is empty, at the end.
  if (first * sizeof(int64_t) >= sequences.byte_offsets.size())
    return num_tokens_;
  return load_at<uint64_t>(sequences.byte_offsets, first) /
         sequences.token_size_bytes;
}

uint64_t DocumentIndex::document_of(uint64_t token) const {
  BRIGADE_ASSERT(token < num_tokens_, "token {} of {}", token, num_tokens_);
  // The last document that begins at or before the token.
  uint64_t low = 0;
  uint64_t high = size_;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace brigade
