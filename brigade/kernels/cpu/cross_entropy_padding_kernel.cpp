#include "brigade/kernels/cpu/cross_entropy_padding_kernel.h"

#include <algorithm>

namespace brigade::ops {

WeightRows weight_rows(
    const HeadShape& shape,
    int64_t begin,
    int64_t numel,
    int64_t depth,
    uint16_t* copy) {
  if (depth == shape.columns && begin + numel <= shape.vocabulary)
    return {shape.weight + begin * shape.weight_stride, shape.weight_stride};
  std::fill_n(copy, numel * depth, uint16_t{0});
  const int64_t rows = std::min(numel, shape.vocabulary - begin);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(
        shape.weight + (begin + row) * shape.weight_stride,
        shape.columns,
        copy + row * depth);
  return {copy, depth};
}

Soon weight_soon(const HeadShape& shape, int64_t begin, int64_t numel) {
  const int64_t rows = std::min(numel, shape.vocabulary - begin);
  if (rows <= 0)
    return {};
  return {
      shape.weight + begin * shape.weight_stride,
      rows * shape.weight_stride * static_cast<int64_t>(sizeof(uint16_t))};
}

KeptTile kept_tile(
    const KeptLogits& kept,
    const PaddedHead& padded,
    int64_t row,
    int64_t t) {
  const int64_t panel = row / kTileRows * (padded.tokens / kPanel) + t / kPanel;
  return {
      kept.exponentials + panel * kTileRows * kPanel,
      kept.maximum + panel * kPanel};
}

}  // namespace brigade::ops
