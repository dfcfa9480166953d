// Writes a Megatron dataset, PREFIX.bin and PREFIX.idx, byte for byte as
// Megatron's own writer does, in memory that does not grow with it.
//
// Both files get their names only in commit(), the index last: a PREFIX.idx
// that exists belongs to a complete .bin. Destroyed without commit(), it leaves
// nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "brigade/data/token_format.h"
#include "brigade/files/descriptor.h"
#include "brigade/files/file.h"

namespace brigade {

// Megatron's choice: uint16 below 65,500 tokens, else int32.
TokenType megatron_token_type(int64_t vocab_size);

// Adds the tokens, converted to `type` (kU16 or kI32), to `bytes`.
// Precondition: they fit.
void append_tokens(
    TokenType type,
    std::span<const int32_t> tokens,
    std::vector<std::byte>& bytes);

// A file without a name: gone as soon as it is closed, whatever happens.
class SpoolFile {
 public:
  // Makes the file in the folder. Throws StorageError, as all members do.
  explicit SpoolFile(const std::filesystem::path& folder);

  void append(std::span<const std::byte> bytes);
  // Fills `out` with the bytes from `offset` on.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path folder_;
  Descriptor descriptor_;
};

struct MegatronWriterOptions {
  TokenType type = TokenType::kU16;
  // A longer document becomes several sequences: .idx has 32-bit lengths.
  uint64_t max_sequence_tokens = std::numeric_limits<int32_t>::max();
};

class MegatronWriter {
 public:
  // Throws StorageError, as all members do.
  MegatronWriter(
      const std::filesystem::path& prefix,
      const MegatronWriterOptions& options);

  // Adds tokens, already in options.type, to the current document.
  void append(std::span<const std::byte> tokens);
  // Ends the current document, which may be empty.
  void end_document();

  uint64_t num_tokens() const { return num_tokens_; }
  uint64_t num_documents() const { return num_documents_; }
  // Tokens of the current document.
  uint64_t open_tokens() const { return document_tokens_; }

  // Precondition: no document is open.
  void commit();

 private:
  void end_sequence();
  void flush_lengths();
  template <typename Handle>
  void for_each_length(const Handle& handle) const;
  void write_index();

  std::filesystem::path prefix_;
  MegatronWriterOptions options_;
  AtomicFile tokens_;
  SpoolFile lengths_;                 // i32 of each sequence
  std::vector<int32_t> new_lengths_;  // not in the spool yet
  std::vector<uint64_t> continuing_;  // sequences that do not begin a document
  uint64_t num_tokens_ = 0;
  uint64_t num_sequences_ = 0;
  uint64_t num_documents_ = 0;
  uint64_t sequence_tokens_ = 0;  // of the current sequence
  uint64_t document_tokens_ = 0;  // of the current document
};

}  // namespace brigade
