// Reading safetensors: one file, memory-mapped. The whole file is validated
// before anything of it is used; tensors are views and are never copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/files/file.h"
#include "brigade/safetensors/dtype.h"

namespace brigade {

struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<uint64_t> shape;      // empty: a scalar
  std::span<const std::byte> data;  // row-major, little-endian, unaligned
};

// Immutable after construction; may be read from several threads.
class SafetensorsFile {
 public:
  // Throws DataError, with the file, the tensor and the offset in bytes, for
  // anything that the format forbids (see header.h).
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  const std::filesystem::path& path() const { return file_.path(); }
  uint64_t size_bytes() const { return file_.size_bytes(); }

  // The tensors in the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // nullptr when the file does not hold it.
  const SafetensorsTensor* find(std::string_view name) const;
  // DataError naming file and tensor when the file does not hold it.
  const SafetensorsTensor& at(std::string_view name) const;
  // __metadata__; empty when absent.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }

 private:
  MappedFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace brigade
