// Which tokens of a dataset count in the loss: PREFIX.mask beside its tokens.
// Without one, all do.
//
// The file, little-endian: the 8 bytes "BRGDMASK", u32 version 1, u32 zero, u64
// number of tokens, u64 how many of them count; then one bit per token, the
// lowest bit of each byte first. The bit of a token says whether it is learned
// as the one that follows the tokens before it. So the first token of a
// conversation has none, and the token that ends an answer has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "brigade/files/file.h"

namespace brigade {

// Memory-mapped and immutable; safe to use from any thread.
class LossMask {
 public:
  // std::nullopt where there is no such file. Throws DataError, naming file and
  // offset, for one that is damaged or of another number of tokens.
  static std::optional<LossMask> open(
      const std::filesystem::path& path,
      uint64_t num_tokens);

  uint64_t counting_tokens() const { return counting_tokens_; }
  // Precondition: token < num_tokens.
  bool counts(uint64_t token) const {
    return (std::to_integer<unsigned>(bits_[token / 8]) >> token % 8 & 1) != 0;
  }

 private:
  LossMask(
      std::shared_ptr<const MappedFile> file,
      std::span<const std::byte> bits,
      uint64_t counting_tokens)
      : file_(std::move(file)),
        bits_(bits),
        counting_tokens_(counting_tokens) {}

  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bits_;  // into file_
  uint64_t counting_tokens_;
};

// Keeps a bit per token in memory until commit().
class LossMaskWriter {
 public:
  void append(bool counts);
  uint64_t num_tokens() const { return num_tokens_; }
  uint64_t counting_tokens() const { return counting_tokens_; }
  // Throws StorageError.
  void commit(const std::filesystem::path& path) const;

 private:
  std::vector<uint8_t> bits_;
  uint64_t num_tokens_ = 0;
  uint64_t counting_tokens_ = 0;
};

// PREFIX.mask of a dataset's path, which may name its file of tokens.
std::filesystem::path loss_mask_path(const std::filesystem::path& dataset);

}  // namespace brigade
