// The token files that users already have, taken apart: what is at which
// offset. Every parser works on bytes in memory, checks each size and offset
// against the files before it is used, and throws DataError with the file's
// name and the offset.
//   Megatron  .idx + .bin           documents from the index
//   nanotron  .ds + .ds.index       documents from the index, if it is there
//   llm.c     .bin with its magic   one document
//   NumPy     .npy                  1-d: one document; 2-d: one per row
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

namespace brigade {

enum class TokenType { kU8, kI8, kU16, kI16, kU32, kI32, kI64, kU64 };

const char* to_string(TokenType type);  // "uint16", ...
uint64_t token_bytes(TokenType type);   // 1, 2, 4 or 8

// Where document d begins, in tokens. The arrays are little-endian, may be
// unaligned and point into the mapped index file, which must outlive this.
class DocumentIndex {
 public:
  // One document.
  explicit DocumentIndex(uint64_t num_tokens);
  // Rows of equal length.
  static DocumentIndex rows(uint64_t num_rows, uint64_t row_tokens);
  // u64 ends of documents, in tokens.
  static DocumentIndex cumulative_ends(std::span<const std::byte> ends);
  // Likewise, of a file that still grows, of which num_tokens are there and
  // maybe more ends: the last document is as far as they go.
  static DocumentIndex growing_ends(
      std::span<const std::byte> ends,
      uint64_t num_tokens);
  // Megatron: the first sequence of each document (i64, the last entry is the
  // end) and each sequence's byte offset (i64).
  static DocumentIndex sequences(
      std::span<const std::byte> first_sequences,
      std::span<const std::byte> byte_offsets,
      uint64_t token_size_bytes,
      uint64_t num_tokens);

  uint64_t size() const { return size_; }
  // document in [0, size()]; begin(size()) is the number of tokens.
  uint64_t begin(uint64_t document) const;
  // The document that holds the token (empty documents hold none).
  // Precondition: token < begin(size()).
  uint64_t document_of(uint64_t token) const;

 private:
  struct Rows {
    uint64_t row_tokens;
  };
  struct Ends {
    std::span<const std::byte> ends;
  };
  struct Sequences {
    std::span<const std::byte> first_sequences;
    std::span<const std::byte> byte_offsets;
    uint64_t token_size_bytes;
  };
  using Layout = std::variant<Rows, Ends, Sequences>;
  DocumentIndex(uint64_t size, uint64_t num_tokens, Layout layout)
      : size_(size), num_tokens_(num_tokens), layout_(layout) {}

  uint64_t size_;
  uint64_t num_tokens_;
  Layout layout_;
};

// The layout of one dataset's tokens: num_tokens of `type`, back to back from
// byte first_byte of the token file.
struct TokenFileLayout {
  TokenType type;
  uint64_t first_byte;
  uint64_t num_tokens;
  DocumentIndex documents;
};

// A file's content and the name that errors call it by.
struct NamedBytes {
  std::string name;
  std::span<const std::byte> bytes;
};

// Sequences must lie back to back in the .bin, as Megatron's writer lays them.
TokenFileLayout parse_megatron(
    const NamedBytes& index,
    const NamedBytes& tokens);

// `type` is the width if the user or .ds.metadata says so; otherwise it
// follows from the index, or, without one, from the vocabulary as nanotron
// has it (uint16 up to 65,536).
TokenFileLayout parse_nanotron(
    const NamedBytes& tokens,
    const std::optional<NamedBytes>& index,
    std::optional<TokenType> type,
    std::optional<int64_t> vocab_size);

bool has_llm_c_magic(std::span<const std::byte> tokens);
TokenFileLayout parse_llm_c(const NamedBytes& tokens);

TokenFileLayout parse_npy(const NamedBytes& tokens);

}  // namespace brigade
