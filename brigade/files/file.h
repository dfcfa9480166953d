// Files as the rest of the program needs them: read-only mappings, and writes
// that are either whole or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/files/background_sha256.h"

namespace brigade {

// A whole file mapped read-only; the mapping lives as long as the object.
class MappedFile {
 public:
  // Throws DataError when the file cannot be opened, stat-ed or mapped, or is
  // not a regular file, or stands for one that Git LFS has not fetched; an
  // Error that is none where memory does not suffice.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), size_bytes_};
  }
  std::string_view text() const {
    return {static_cast<const char*>(data_), size_bytes_};
  }

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;
  uint64_t size_bytes_ = 0;

  void refuse_large_file_pointer() const;
};

// What a file must hold.
struct FileDigest {
  uint64_t size_bytes = 0;
  std::string sha256;  // lower-case hexadecimal
  bool operator==(const FileDigest&) const = default;
};

enum class Digest { kNone, kSha256 };

// A file under construction: written as PATH.tmp-<pid>, synced and renamed to
// PATH by commit(). Destroyed without commit() it removes what it wrote, so
// that a half-written file never carries the final name.
// Not thread-safe. Every failure is a StorageError naming the path and errno.
class AtomicFile {
 public:
  // Refused is a PATH that is_written_in_place() (output_path.h), and a folder.
  // With Digest::kSha256 what is written is hashed on its way, and passes by
  // the page cache where the file system allows it: a checkpoint is large and
  // seldom read again soon.
  explicit AtomicFile(
      std::filesystem::path path,
      Digest digest = Digest::kNone);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, uint64_t size_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t written_bytes() const { return written_bytes_; }

  // Flushes, fsyncs, renames over PATH and syncs the folder.
  void commit();
  // After commit(), once. Precondition: Digest::kSha256.
  FileDigest digest();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_path_;
  int descriptor_ = -1;
  uint64_t written_bytes_ = 0;
  // What is hashed and written piece by piece; the last one is being filled.
  // More than one where a piece may still be hashed while others are filled.
  using Piece = std::unique_ptr<std::byte, void (*)(void*)>;
  std::vector<Piece> pieces_;
  size_t filled_piece_ = 0;
  uint64_t filled_bytes_ = 0;
  bool is_direct_ = false;                // written past the page cache
  std::optional<BackgroundSha256> hash_;  // destroyed before what it reads

  void flush();
  void write_piece(const std::byte* data, uint64_t size_bytes);
  void set_direct(bool is_direct);
};

// The whole file as a string; DataError naming the path if it cannot be read.
std::string read_text_file(const std::filesystem::path& path);

// The value of the first line that begins with `key`, in a file of lines "key:
// value" (/proc/cpuinfo), without blanks and quotes around it; "" where there
// is none, or no such file.
std::string value_in(
    const std::filesystem::path& path,
    std::string_view key,
    char between = ':');

// Writes through an AtomicFile, or in place (output_path.h); through a link to
// what it leads to.
void write_text_file(const std::filesystem::path& path, std::string_view text);

// "data/mine" and ".bin" give "data/mine.bin", whatever dots the name has.
std::filesystem::path with_suffix(
    std::filesystem::path path,
    std::string_view suffix);

// fsync of a folder, so that a rename or a new entry in it survives a crash.
void sync_directory(const std::filesystem::path& directory);

}  // namespace brigade
