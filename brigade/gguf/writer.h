// Writing GGUF: atomically, one tensor in memory at a time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "brigade/files/file.h"
#include "brigade/gguf/format.h"

namespace brigade {

// A file under construction. Entries and the list of tensors go out first, then
// the data of each in the order of the list. Until commit() no file has the
// final name. Every failure to write is a StorageError that names the path. Not
// thread-safe.
class GgufWriter {
 public:
  // Preconditions: keys and names are distinct valid UTF-8, names of at most 63
  // bytes, as ggml reads them, every tensor has data_bytes().
  GgufWriter(
      const std::filesystem::path& path,
      const std::vector<GgufEntry>& entries,
      std::vector<GgufTensorSpec> tensors);

  // The data of the next tensor, row-major. Precondition: exactly its bytes.
  void write_next(std::span<const std::byte> data);

  // Precondition: every tensor is written.
  void commit();

 private:
  std::vector<GgufTensorSpec> tensors_;
  size_t next_ = 0;
  AtomicFile file_;

  void pad();
};

}  // namespace brigade
