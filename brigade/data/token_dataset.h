// Tokens on disk, memory-mapped: one long sequence, cut into documents, and
// with a mask beside it which of them count in the loss.
//
// open() reads and checks the headers and indexes, so all damage there is
// found before training; token ids are checked as they are read, and all of
// them by check_token_ids(). Immutable
// after that: read() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "brigade/data/loss_mask.h"
#include "brigade/data/token_format.h"
#include "brigade/files/file.h"

namespace brigade {

// A target that has no loss: ops::CrossEntropyOptions::ignore_index.
inline constexpr int64_t kNoTarget = -100;

struct TokenDatasetOptions {
  // Ids at or above it are an error when they are read, and so is a dataset
  // prepared with a larger vocabulary when it is opened.
  std::optional<int64_t> vocab_size;
};

struct TokenIdRange {
  int64_t lowest = 0;
  int64_t highest = -1;
};

class TokenDataset {
 public:
  // `path` is a prefix (PREFIX.bin + PREFIX.idx), or names a .bin, .idx, .ds or
  // .npy file. A .bin without .idx must be llm.c's. Throws DataError with file
  // and offset for damage, ConfigError for a vocabulary larger than
  // options.vocab_size.
  static TokenDataset open(
      const std::filesystem::path& path,
      const TokenDatasetOptions& options = {});

  // What is there now of files that grow (text_tokens.h): tokens of `type`, and
  // the ends of their documents, which are written first.
  static TokenDataset open_growing(
      const std::filesystem::path& tokens,
      const std::filesystem::path& ends,
      TokenType type,
      const TokenDatasetOptions& options = {});

  // The file of tokens, as messages name it.
  const std::filesystem::path& path() const { return tokens_->path(); }
  const char* format() const { return format_; }  // "Megatron", "llm.c", ...
  TokenType token_type() const { return layout_.type; }
  uint64_t num_tokens() const { return layout_.num_tokens; }
  const DocumentIndex& documents() const { return layout_.documents; }

  // Tokens [begin, begin + out.size()) as int64. Throws DataError naming file
  // and byte offset of an id that is negative or outside the vocabulary.
  // Precondition: the range lies within num_tokens().
  void read(uint64_t begin, std::span<int64_t> out) const;
  // The same, with kNoTarget in place of tokens that do not count in the loss.
  void read_targets(uint64_t begin, std::span<int64_t> out) const;

  // Whether the token counts in the loss. Precondition: token < num_tokens().
  bool counts(uint64_t token) const { return !mask_ || mask_->counts(token); }
  // How many tokens count; absent without PREFIX.mask: all do.
  std::optional<uint64_t> counting_tokens() const {
    return mask_ ? std::optional(mask_->counting_tokens()) : std::nullopt;
  }

  // The range of the ids of tokens [begin, begin + count), inside the
  // vocabulary or not; ids of 2^63 and more count as negative. Precondition:
  // count > 0, and the range lies within num_tokens().
  TokenIdRange range_of(uint64_t begin, uint64_t count) const;

  // Throws DataError when the dataset is empty or holds no window of
  // seq_length + 1 tokens.
  void require_window(int64_t seq_length) const;

 private:
  // Behind pointers, so that moving the dataset leaves the spans into the
  // mappings valid.
  TokenDataset(
      const char* format,
      std::shared_ptr<const MappedFile> tokens,
      std::shared_ptr<const MappedFile> index,
      TokenFileLayout layout,
      const TokenDatasetOptions& options)
      : format_(format),
        tokens_(std::move(tokens)),
        index_(std::move(index)),
        layout_(layout),
        options_(options),
        mask_(LossMask::open(
            loss_mask_path(tokens_->path()),
            layout.num_tokens)) {}

  const char* format_;
  std::shared_ptr<const MappedFile> tokens_;
  std::shared_ptr<const MappedFile> index_;  // null without one
  TokenFileLayout layout_;
  TokenDatasetOptions options_;
  std::optional<LossMask> mask_;
};

}  // namespace brigade
