// The bytes of a text file, decompressed on the way: plain, gzip or zstd,
// recognised by the file's first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace brigade {

// One thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Fills out[0, size) as far as the file goes; returns how many bytes, 0 at
  // the end. Throws DataError naming the file and the offset in it for damaged
  // or cut off compression, StorageError when reading fails.
  virtual size_t read(char* out, size_t size) = 0;

  // How far into the file on disk it has read; for progress.
  virtual uint64_t file_position() const = 0;
};

// Throws DataError when the file cannot be opened or is a folder.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

}  // namespace brigade
