// safetensors' dtypes and tensors as libtorch's.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string_view>

#include "brigade/safetensors/dtype.h"
#include "brigade/safetensors/safetensors.h"

namespace brigade {

// Throws DataError that names `tensor` when `dtype` is no float: weights and
// optimizer state are floats.
torch::Dtype torch_dtype(SafetensorsDtype dtype, std::string_view tensor);

// The stored tensor over its mapped memory, which must outlive it. safetensors
// promises no alignment, so a view that is not aligned is copied.
torch::Tensor as_tensor(const SafetensorsTensor& stored);

// Codes of blocks, as they are stored: int8 or uint8.
torch::Tensor as_codes(const SafetensorsTensor& stored);

// Throws DataError that names the stored `tensor` and its file where not all of
// the values read from it are finite: training would only find out at its first
// loss.
void check_finite(
    const torch::Tensor& values,
    std::string_view tensor,
    const std::function<std::filesystem::path()>& find_file);

}  // namespace brigade
