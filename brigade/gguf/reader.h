// Reading GGUF: one file, memory-mapped and validated as a whole before
// anything of it is used. Every size is overflow-checked, and nothing is
// allocated beyond what the file's own bytes can fill.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/files/file.h"
#include "brigade/gguf/format.h"

namespace brigade {

struct GgufTensor : GgufTensorSpec {
  std::span<const std::byte> data;  // unaligned
};

// Views point into the file's bytes.
struct GgufContents {
  std::map<std::string, GgufValue, std::less<>> entries;
  std::vector<GgufTensor> tensors;  // in the order of their data
};

// Throws DataError with the file and the offset in bytes for anything but a
// little-endian GGUF of version 2 or 3 whose tensors are of the types of
// format.h. Lists of 64-bit integers and doubles, and lists of lists, are not
// kept: no model has any that matter.
GgufContents parse_gguf(
    std::span<const std::byte> file,
    const std::string& file_name);

// Immutable after construction; may be read from several threads.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<GgufTensor>& tensors() const { return contents_.tensors; }
  // nullptr when the file does not hold it.
  const GgufTensor* find(std::string_view name) const;

  // The entry's value; nullptr when the file does not hold it. DataError when
  // it is of another type.
  template <typename Value>
  const Value* find_value(std::string_view key) const {
    const GgufValue* value = find_any(key);
    const Value* typed = value ? std::get_if<Value>(value) : nullptr;
    if (value != nullptr && typed == nullptr)
      refuse_type(key);
    return typed;
  }
  // The same of one that must be there.
  template <typename Value>
  const Value& value(std::string_view key) const {
    const Value* found = find_value<Value>(key);
    if (found == nullptr)
      refuse_absence(key);
    return *found;
  }

 private:
  MappedFile file_;
  GgufContents contents_;
  std::map<std::string_view, size_t> by_name_;  // into contents_.tensors

  const GgufValue* find_any(std::string_view key) const;
  [[noreturn]] void refuse_type(std::string_view key) const;
  [[noreturn]] void refuse_absence(std::string_view key) const;
};

}  // namespace brigade
