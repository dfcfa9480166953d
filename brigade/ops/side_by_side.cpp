#include "brigade/ops/side_by_side.h"

#include <algorithm>
#include <numeric>

#include "brigade/ops/rows.h"

namespace brigade::ops {

std::optional<SideBySide> side_by_side(
    const std::vector<torch::Tensor>& parts) {
  SideBySide result;
  for (const torch::Tensor& part : parts) {
    if (!part.defined() || part.scalar_type() != parts[0].scalar_type() ||
        !part.has_storage() ||
        part.storage().data() != parts[0].storage().data() ||
        part.size(0) != parts[0].size(0) || part.size(1) == 0 ||
        part.size(0) == 0 || (part.size(1) > 1 && part.stride(1) != 1))
      return std::nullopt;
    result.columns += part.size(1);
  }
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parts[a].storage_offset() < parts[b].storage_offset();
  });
  result.column.resize(parts.size());
  int64_t column = 0;
  const int64_t begin = parts[order[0]].storage_offset();
  for (const size_t i : order) {
    const bool dense =
        parts[i].size(0) == 1 || parts[i].stride(0) == result.columns;
    if (!dense || parts[i].storage_offset() != begin + column)
      return std::nullopt;
    result.column[i] = column;
    column += parts[i].size(1);
  }
  const torch::Tensor& first = parts[order[0]];
  result.whole =
      slice_of(first, {first.size(0), result.columns}, {result.columns, 1}, 0);
  return result;
}

std::vector<torch::Tensor> empty_side_by_side(
    const std::vector<torch::Tensor>& like,
    torch::ScalarType dtype) {
  std::vector<torch::Tensor> flat;
  bool equal_rows = true;
  for (const torch::Tensor& x : like) {
    flat.push_back(as_rows(x));
    equal_rows = equal_rows && flat.back().size(0) == flat[0].size(0);
  }
  if (!equal_rows) {
    std::vector<torch::Tensor> apart;
    for (const torch::Tensor& x : like)
      apart.push_back(at::empty(x.sizes(), x.options().dtype(dtype)));
    return apart;
  }
  std::optional<SideBySide> layout = side_by_side(flat);
  if (!layout) {
    layout.emplace();
    for (const torch::Tensor& x : flat) {
      layout->column.push_back(layout->columns);
      layout->columns += x.size(1);
    }
  }
  const torch::Tensor buffer = at::empty(
      {flat[0].size(0), layout->columns}, like[0].options().dtype(dtype));
  std::vector<torch::Tensor> result;
  for (size_t i = 0; i < like.size(); ++i) {
    std::vector<int64_t> strides(like[i].dim(), 1);
    int64_t stride = layout->columns;
    for (int64_t dim = like[i].dim() - 2; dim >= 0; --dim) {
      strides[dim] = stride;
      stride *= like[i].size(dim);
    }
    result.push_back(
        slice_of(buffer, like[i].sizes(), strides, layout->column[i]));
  }
  return result;
}

}  // namespace brigade::ops
