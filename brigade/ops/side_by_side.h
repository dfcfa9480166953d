// Tensors that lie side by side in the rows of one buffer: the outputs of a
// fused product, and gradients that shall feed one.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace brigade::ops {

// Several [rows, width_i] tensors that are column ranges of one dense
// [rows, sum of widths] matrix, in any order.
struct SideBySide {
  std::vector<int64_t> column;  // at which each begins
  int64_t columns = 0;          // of the whole
  torch::Tensor whole;          // [rows, columns]
};

// std::nullopt where they do not fill such a matrix without gaps. Each is
// [rows, width] with a dense last dim.
std::optional<SideBySide> side_by_side(const std::vector<torch::Tensor>& parts);

// The same of [height_i, columns] matrices below one another, each contiguous:
// weights as one. `column` is then the row at which each begins, `columns`
// their sum, and `whole` is [sum of heights, columns].
std::optional<SideBySide> one_below_another(
    const std::vector<torch::Tensor>& parts);

// New uninitialised tensors of the given shapes ([.., width_i]) as column
// ranges of one buffer, in the order in which `like` lies if it lies side by
// side, else in the given order. Tensors of their own where the leading dims
// differ.
std::vector<torch::Tensor> empty_side_by_side(
    const std::vector<torch::Tensor>& like,
    torch::ScalarType dtype);

}  // namespace brigade::ops
