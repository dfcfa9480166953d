// A teacher's top-k log-probabilities: of each token of a dataset the k tokens
// that the teacher finds likeliest in its place, after the tokens before it.
// `brigade evaluate --top-k` writes the file, training.loss "distill" reads it.
//
// The file, little-endian: the 8 bytes "BRGDTOPK", u32 version 1, u32 k, u64
// number of tokens of the dataset, u64 of its documents, u32 vocabulary (the
// ids are below it), u32 length of the windows in which the teacher read the
// dataset (0: each document by itself), then two texts, each a u32 length and
// its bytes: the dataset's fingerprint (of the file of tokens, as in
// files/fingerprint.h; of documents by themselves also where these begin), and
// the teacher's name; and a u32 checksum, the low half of FNV-1a over all
// before it. Then a record per token: k ids (u32), k log-probabilities
// (float32, nats, likeliest first), and a checksum over the token's number
// (u64), its id (i64) and what is before the checksum. So a record that is
// damaged, or was made for another token, is found when it is read. Tokens that
// nothing predicts, the first of the dataset or of a document, have a record of
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/data/sample_source.h"
#include "brigade/data/token_dataset.h"
#include "brigade/files/file.h"

namespace brigade {

// What the file begins with.
inline constexpr std::string_view kTeacherMagic = "BRGDTOPK";

struct TeacherFileInfo {
  int64_t k = 0;
  int64_t vocabulary = 0;
  int64_t window_length = 0;  // 0: each document by itself
  std::string model;          // a name for people
};

// What stands before the records.
struct TeacherFileHeader {
  TeacherFileInfo info;
  uint64_t num_tokens = 0;  // the dataset's, as are the others
  uint64_t num_documents = 0;
  std::string fingerprint;
  uint64_t end = 0;  // where the records begin, in bytes
};
// bytes: the whole file; file: its name, for errors. Throws DataError, naming
// file and offset, for a header that is damaged or records that are not all
// there.
TeacherFileHeader parse_teacher_header(
    const std::string& file,
    std::span<const std::byte> bytes);

// What the first records say together.
struct TeacherSummary {
  uint64_t records = 0;    // that were read
  uint64_t predicted = 0;  // those of tokens that something predicts
  double probability = 0;  // that their k tokens have together: the mean
};
// Summarizes the first `most` records. Throws DataError, naming file and
// offset, for one that no teacher wrote: without the tokens of the dataset
// checksums mean nothing, but ids are of the vocabulary, and log-probabilities
// are finite and do not rise.
TeacherSummary summarize_teacher(
    const std::string& file,
    std::span<const std::byte> bytes,
    const TeacherFileHeader& header,
    uint64_t most);

// Memory-mapped and immutable; safe to use from any thread.
class TeacherFile {
 public:
  // As parse_teacher_header().
  explicit TeacherFile(const std::filesystem::path& path);

  const TeacherFileInfo& info() const { return header_.info; }
  // As summarize_teacher().
  TeacherSummary summary(uint64_t most) const;
  // Whether the path is a file that begins as one of these.
  static bool is_one(const std::filesystem::path& path);
  // The dataset that it was made of, in words.
  std::string dataset() const;
  // How the dataset differs from the one that it was made of, by what its
  // header says; "": not.
  std::string unlike(const TokenDataset& dataset) const;
  // Adds the records of `tokens`, which begin with number `first` of the
  // dataset, to the end of `into`. Throws DataError, naming file and offset,
  // for a record that is damaged or was made for another token.
  void read(
      uint64_t first,
      std::span<const int64_t> tokens,
      TeacherTokens& into) const;

 private:
  MappedFile file_;
  TeacherFileHeader header_;
};

// Writes the records one after another; the file is whole after commit(), or
// absent.
class TeacherFileWriter {
 public:
  TeacherFileWriter(
      const std::filesystem::path& path,
      const TokenDataset& dataset,
      const TeacherFileInfo& info);

  // Adds the record of a token that nothing predicts.
  void append_nothing();
  // Throws NumericError for log-probabilities that are not finite.
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
