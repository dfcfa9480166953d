#include "brigade/safetensors/safetensors.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/safetensors/header.h"

namespace brigade {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path) {
  const auto header =
      parse_safetensors_header(file_.bytes(), file_.path().string());
  const auto data = file_.bytes().subspan(header.data_offset_bytes);
  tensors_.reserve(header.entries.size());
  for (const SafetensorsEntry& entry : header.entries) {
    by_name_.emplace(std::string(entry.name), tensors_.size());
    tensors_.push_back(
        {.name = std::string(entry.name),
         .dtype = entry.dtype,
         .shape = parse_safetensors_shape(entry.shape_text),
         .data = data.subspan(
             entry.begin_bytes, entry.end_bytes - entry.begin_bytes)});
  }
  for (auto& [key, value] : parse_safetensors_metadata(header.metadata_text))
    metadata_[std::move(key)] = std::move(value);
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const SafetensorsTensor& SafetensorsFile::at(std::string_view name) const {
  const SafetensorsTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw DataError(fmt::format(
        "[safetensors] '{}' holds no tensor '{}'", path().string(), name));
  }
  return *tensor;
}

}  // namespace brigade
