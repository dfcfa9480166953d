#include "brigade/ops/side_by_side.h"

#include <algorithm>
#include <numeric>

#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

bool share_memory(const std::vector<torch::Tensor>& parts) {
  return std::all_of(
      parts.begin(), parts.end(), [&](const torch::Tensor& part) {
        return part.defined() && part.numel() > 0 && part.has_storage() &&
               part.scalar_type() == parts[0].scalar_type() &&
               part.storage().data() == parts[0].storage().data();
      });
}

// The parts in the order of memory, if each begins as many elements after the
// first one as widths[] of those before it add up to. Fills in `column`.
std::optional<std::vector<size_t>> order_without_gaps(
    const std::vector<torch::Tensor>& parts,
    const std::vector<int64_t>& widths,
    std::vector<int64_t>& column) {
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parts[a].storage_offset() < parts[b].storage_offset();
  });
  column.resize(parts.size());
  int64_t next = 0;
  const int64_t begin = parts[order[0]].storage_offset();
  for (const size_t i : order) {
    if (parts[i].storage_offset() != begin + next)
      return std::nullopt;
    column[i] = next;
    next += widths[i];
  }
  return order;
}

}  // namespace

std::optional<SideBySide> side_by_side(
    const std::vector<torch::Tensor>& parts) {
  if (!share_memory(parts))
    return std::nullopt;
  SideBySide result;
  std::vector<int64_t> widths;
  for (const torch::Tensor& part : parts) {
    widths.push_back(part.size(1));
    result.columns += part.size(1);
  }
  const int64_t rows = parts[0].size(0);
  for (const torch::Tensor& part : parts) {
    if (part.size(0) != rows || (part.size(1) > 1 && part.stride(1) != 1) ||
        (rows > 1 && part.stride(0) != result.columns))
      return std::nullopt;
  }
  const auto order = order_without_gaps(parts, widths, result.column);
  if (!order)
    return std::nullopt;
  result.whole = slice_of(
      parts[order->front()], {rows, result.columns}, {result.columns, 1}, 0);
  return result;
}

std::optional<SideBySide> one_below_another(
    const std::vector<torch::Tensor>& parts) {
  if (!share_memory(parts))
    return std::nullopt;
  const int64_t width = parts[0].size(1);
  std::vector<int64_t> numels;
  for (const torch::Tensor& part : parts) {
    if (!part.is_contiguous() || part.size(1) != width)
      return std::nullopt;
    numels.push_back(part.numel());
  }
  SideBySide result;
  const auto order = order_without_gaps(parts, numels, result.column);
  if (!order)
    return std::nullopt;
  for (int64_t& row : result.column)
    row /= width;
  for (const torch::Tensor& part : parts)
    result.columns += part.size(0);
  result.whole =
      slice_of(parts[order->front()], {result.columns, width}, {width, 1}, 0);
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
