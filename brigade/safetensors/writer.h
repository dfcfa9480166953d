// Writing safetensors: atomically, one tensor in memory at a time if need be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "brigade/files/file.h"
#include "brigade/safetensors/dtype.h"

namespace brigade {

struct TensorSpec {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<uint64_t> shape;
};

// The bytes of a spec's data.
uint64_t size_bytes(const TensorSpec& spec);

using SafetensorsMetadata = std::map<std::string, std::string>;

// What transformers wants to see in the files that it loads.
inline const SafetensorsMetadata kPyTorchMetadata = {{"format", "pt"}};

// A file under construction. The header goes out first, so all names, dtypes
// and shapes are known at the start; then the data of each, in order(). Until
// commit() no file has the final name. Every failure to write is a
// StorageError that names the path. Not thread-safe.
class SafetensorsWriter {
 public:
  // Precondition: names are distinct valid UTF-8, none "__metadata__".
  SafetensorsWriter(
      const std::filesystem::path& path,
      std::vector<TensorSpec> specs,
      const SafetensorsMetadata& metadata = kPyTorchMetadata,
      Digest digest = Digest::kNone);

  // The format's own order: the widest dtype first, then by name.
  const std::vector<TensorSpec>& order() const { return specs_; }

  // The data of the next tensor of order(), row-major and little-endian.
  // Precondition: exactly its size in bytes.
  void write_next(std::span<const std::byte> data);

  // Precondition: every tensor is written.
  void commit();
  // The digest of the whole file, after commit(). Precondition:
  // Digest::kSha256.
  FileDigest digest() { return file_.digest(); }

 private:
  std::vector<TensorSpec> specs_;
  size_t next_ = 0;
  AtomicFile file_;
};

}  // namespace brigade
