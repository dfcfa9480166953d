// What a teacher says of a dataset: of each token the k that it finds likeliest
// in its place, after the tokens before it, with their log-probabilities.
// `brigade evaluate --top-k` writes it, training.loss "distill" reads it.
//
// The file, little-endian: the 8 bytes "BRGDTOPK", u32 version 1, u32 k, u64
// number of tokens of the dataset, u64 of its documents, u32 vocabulary (the
// ids are below it), u32 length of the windows in which the teacher read the
// dataset (0: each document by itself), then two texts, each a u32 length and
// its bytes: the fingerprint of the dataset's file of tokens
// (files/fingerprint.h), and the teacher's name; and a u32 checksum, the low
// half of FNV-1a over all before it. Then a record per token: k ids (u32), k
// log-probabilities (float32, nats, likeliest first), and a checksum over the
// token's number (u64), its id (i64) and what is before the checksum. So a record that is damaged, or was made for
// another token, is found when it is read. Tokens that nothing predicts, the
// first of the dataset or of a document, have a record of zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "brigade/data/sample_source.h"
#include "brigade/data/token_dataset.h"
#include "brigade/files/file.h"

namespace brigade {

struct TeacherFileInfo {
  int64_t k = 0;
  int64_t vocabulary = 0;
  int64_t window_length = 0;  // 0: each document by itself
  std::string model;          // a name for people
};

// Memory-mapped and immutable; safe to use from any thread.
class TeacherFile {
 public:
  // Throws DataError, naming file and offset, for a header that is damaged or
  // records that are not all there.
  explicit TeacherFile(const std::filesystem::path& path);

  const TeacherFileInfo& info() const { return info_; }
  // Throws ConfigError unless it was made from this dataset, by what its header
  // says.
  void require_dataset(const TokenDataset& dataset) const;
  // Adds what it says of `tokens`, which begin with number `first` of the
  // dataset, to the end of `into`. Throws DataError, naming file and offset, for a record
  // that is damaged or was made for another token.
  void read(
      uint64_t first,
      std::span<const int64_t> tokens,
      TeacherTokens& into) const;

 private:
  MappedFile file_;
  TeacherFileInfo info_;
  uint64_t num_tokens_ = 0;
  uint64_t num_documents_ = 0;
  std::string dataset_;  // its fingerprint
  uint64_t begin_ = 0;   // of the records, in bytes
};

// Writes the records one after another; the file is whole after commit(), or
// absent.
class TeacherFileWriter {
 public:
  TeacherFileWriter(
      const std::filesystem::path& path,
      const TokenDataset& dataset,
      const TeacherFileInfo& info);

  // Of a token that nothing predicts.
  void append_nothing();
  // Of as many tokens as it speaks of. Throws NumericError for log-probabilities
  // that are not finite.
  void append(const TeacherTokens& of_tokens);
  // The token whose record is the next one.
  uint64_t next_token() const { return token_; }
  // Once all tokens of the dataset have a record. Throws StorageError.
  void commit();

 private:
  void append(std::span<const int64_t> ids, std::span<const float> log_probs);

  const TokenDataset& dataset_;
  AtomicFile file_;
  size_t k_;
  uint64_t token_ = 0;
  std::vector<std::byte> record_;
};

}  // namespace brigade
