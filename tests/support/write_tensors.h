#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/write_safetensors.h"

namespace brigade {

// Contiguous tensors on the CPU as a safetensors file.
inline void write_tensors(
    const std::filesystem::path& path,
    const std::map<std::string, torch::Tensor>& tensors) {
  static const std::map<torch::ScalarType, SafetensorsDtype> kDtypes = {
      {torch::kFloat64, SafetensorsDtype::kF64},
      {torch::kFloat32, SafetensorsDtype::kF32},
      {torch::kFloat16, SafetensorsDtype::kF16},
      {torch::kBFloat16, SafetensorsDtype::kBF16},
      {torch::kInt32, SafetensorsDtype::kI32},
      {torch::kInt64, SafetensorsDtype::kI64}};
  std::vector<TensorToWrite> list;
  for (const auto& [name, tensor] : tensors)
    list.push_back(
        {name,
         kDtypes.at(tensor.scalar_type()),
         {tensor.sizes().begin(), tensor.sizes().end()},
         {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
  write_safetensors(path, list);
}

}  // namespace brigade
