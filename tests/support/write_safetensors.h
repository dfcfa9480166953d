// A safetensors file in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "brigade/safetensors/writer.h"

namespace brigade {

struct TensorToWrite {
  std::string name;
  SafetensorsDtype dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> data;
};

inline void write_safetensors(
    const std::filesystem::path& path,
    const std::vector<TensorToWrite>& tensors,
    const SafetensorsMetadata& metadata = kPyTorchMetadata) {
  std::vector<TensorSpec> specs;
  std::map<std::string, std::span<const std::byte>> data;
  for (const TensorToWrite& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    data.emplace(tensor.name, tensor.data);
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.order())
    writer.write_next(data.at(spec.name));
  writer.commit();
}

}  // namespace brigade
