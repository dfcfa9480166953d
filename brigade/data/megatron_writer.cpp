#include "brigade/data/megatron_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLengthsPerBlock = 1 << 16;

[[noreturn]] void throw_storage(const char* what, const fs::path& folder) {
  const int error = errno;
  throw StorageError(fmt::format(
      "[megatron_writer] cannot {} a temporary file in '{}': {}",
      what,
      folder.string(),
      std::strerror(error)));
}

template <typename T>
void write_number(AtomicFile& file, T value) {
  file.write(&value, sizeof(value));
}

template <typename T>
void append_as(std::span<const int32_t> tokens, std::vector<std::byte>& bytes) {
  const size_t begin = bytes.size();
  bytes.resize(begin + tokens.size() * sizeof(T));
  std::byte* out = bytes.data() + begin;
  for (const int32_t token : tokens) {
    BRIGADE_ASSERT(
        token >= 0 && static_cast<uint32_t>(token) <=
                          static_cast<uint32_t>(std::numeric_limits<T>::max()),
        "token {}",
        token);
    const T value = static_cast<T>(token);
    std::memcpy(out, &value, sizeof(T));
    out += sizeof(T);
  }
}

}  // namespace

TokenType megatron_token_type(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

void append_tokens(
    TokenType type,
    std::span<const int32_t> tokens,
    std::vector<std::byte>& bytes) {
  BRIGADE_ASSERT(type == TokenType::kU16 || type == TokenType::kI32);
  if (type == TokenType::kU16)
    append_as<uint16_t>(tokens, bytes);
  else
    append_as<int32_t>(tokens, bytes);
}

SpoolFile::SpoolFile(const fs::path& folder)
    : folder_(folder.empty() ? "." : folder) {
  descriptor_ = Descriptor(::open(
      folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (descriptor_.is_open())
    return;
  // Some file systems cannot; then a name, taken away at once.
  std::string pattern = folder_ / ".brigade_spool_XXXXXX";
  descriptor_ = Descriptor(::mkostemp(pattern.data(), O_CLOEXEC));
  if (!descriptor_.is_open())
    throw_storage("create", folder_);
  ::unlink(pattern.c_str());
}

void SpoolFile::append(std::span<const std::byte> bytes) {
  if (!descriptor_.write(bytes))
    throw_storage("write", folder_);
}

void SpoolFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(
        descriptor_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      throw_storage("read", folder_);
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

MegatronWriter::MegatronWriter(
    const fs::path& prefix,
    const MegatronWriterOptions& options)
    : prefix_(prefix),
      options_(options),
      tokens_(with_suffix(prefix, ".bin")),
      lengths_(prefix.parent_path()) {
  BRIGADE_ASSERT(
      options.type == TokenType::kU16 || options.type == TokenType::kI32);
  BRIGADE_ASSERT(options.max_sequence_tokens > 0);
}

void MegatronWriter::append(std::span<const std::byte> tokens) {
  const uint64_t item_bytes = token_bytes(options_.type);
  BRIGADE_ASSERT(tokens.size() % item_bytes == 0);
  uint64_t count = tokens.size() / item_bytes;
  tokens_.write(tokens.data(), tokens.size());
  num_tokens_ += count;
  document_tokens_ += count;
  while (sequence_tokens_ + count > options_.max_sequence_tokens) {
    count -= options_.max_sequence_tokens - sequence_tokens_;
    sequence_tokens_ = options_.max_sequence_tokens;
    end_sequence();
    continuing_.push_back(num_sequences_);
  }
  sequence_tokens_ += count;
}

void MegatronWriter::end_sequence() {
  new_lengths_.push_back(static_cast<int32_t>(sequence_tokens_));
  if (new_lengths_.size() == kLengthsPerBlock)
    flush_lengths();
  ++num_sequences_;
  sequence_tokens_ = 0;
}

void MegatronWriter::end_document() {
  end_sequence();
  ++num_documents_;
  document_tokens_ = 0;
}

void MegatronWriter::flush_lengths() {
  lengths_.append(std::as_bytes(std::span(new_lengths_)));
  new_lengths_.clear();
}

template <typename Handle>
void MegatronWriter::for_each_length(const Handle& handle) const {
  std::vector<int32_t> block(kLengthsPerBlock);
  for (uint64_t done = 0; done < num_sequences_; done += block.size()) {
    block.resize(std::min<uint64_t>(kLengthsPerBlock, num_sequences_ - done));
    lengths_.read(
        done * sizeof(int32_t), std::as_writable_bytes(std::span(block)));
    for (const int32_t length : block)
      handle(length);
  }
}

void MegatronWriter::write_index() {
  flush_lengths();
  AtomicFile index(with_suffix(prefix_, ".idx"));
  index.write(std::string_view("MMIDIDX\0\0", 9));
  write_number<uint64_t>(index, 1);  // version
  write_number<uint8_t>(index, options_.type == TokenType::kU16 ? 8 : 4);
  write_number<uint64_t>(index, num_sequences_);
  write_number<uint64_t>(index, num_documents_ + 1);
  for_each_length([&](int32_t length) { write_number(index, length); });
  int64_t offset_bytes = 0;
  for_each_length([&](int32_t length) {
    write_number(index, offset_bytes);
    offset_bytes += length * static_cast<int64_t>(token_bytes(options_.type));
  });
  auto continuing = continuing_.begin();
  for (uint64_t sequence = 0; sequence < num_sequences_; ++sequence) {
    if (continuing != continuing_.end() && *continuing == sequence)
      ++continuing;
    else
      write_number(index, static_cast<int64_t>(sequence));
  }
  write_number(index, static_cast<int64_t>(num_sequences_));
  index.commit();
}

void MegatronWriter::commit() {
  BRIGADE_ASSERT(document_tokens_ == 0, "a document is open");
  tokens_.commit();
  write_index();
}

}  // namespace brigade
