#include "brigade/kernels/aten/grouped_products.h"

#include <numeric>
#include <optional>

#include "brigade/ops/libtorch_versions.h"

namespace brigade::ops {
namespace {

// What libtorch's kernel wants of each row and matrix.
constexpr int64_t kAlignedElements = 8;
constexpr int64_t kMostGroups = 1023;

// Rows of `parts`, in turn, as one matrix; nothing where they lie otherwise.
std::optional<Tensor> one_matrix(const std::vector<const Tensor*>& parts) {
  const Tensor& first = *parts.front();
  const int64_t stride = first.stride(0);
  int64_t rows = 0;
  for (const Tensor* part : parts) {
    if (!part->is_alias_of(first) || part->size(1) != first.size(1) ||
        part->stride(0) != stride || part->stride(1) != 1 ||
        part->storage_offset() != first.storage_offset() + rows * stride)
      return std::nullopt;
    rows += part->size(0);
  }
  if (stride < first.size(1) || stride % kAlignedElements != 0 ||
      first.storage_offset() % kAlignedElements != 0)
    return std::nullopt;
  return first.as_strided({rows, first.size(1)}, {stride, 1});
}

// Matrices [G, out, in] of which each operand has one, and where its rows end.
struct Groups {
  Tensor weights;
  Tensor ends;  // int32 [G]
};

std::optional<Groups> groups_of(const std::vector<LinearOperands>& each) {
  const Tensor& first = each.front().weight;
  int64_t distance = 0;
  for (const LinearOperands& one : each) {
    const int64_t offset = one.weight.storage_offset() - first.storage_offset();
    if (!one.weight.is_alias_of(first) || one.weight.sizes() != first.sizes() ||
        !one.weight.is_contiguous() || offset < 0)
      return std::nullopt;
    distance = std::gcd(distance, offset);
  }
  if (distance < first.numel() || distance % kAlignedElements != 0 ||
      first.size(1) % kAlignedElements != 0 ||
      first.storage_offset() % kAlignedElements != 0)
    return std::nullopt;
  std::vector<int32_t> ends;
  int32_t rows = 0;
  for (const LinearOperands& one : each) {
    const int64_t group =
        (one.weight.storage_offset() - first.storage_offset()) / distance;
    if (group < static_cast<int64_t>(ends.size()) || group >= kMostGroups)
      return std::nullopt;  // in another order, or too many
    // Matrices between two operands have no rows.
    ends.resize(static_cast<size_t>(group), rows);
    rows += static_cast<int32_t>(one.x.size(0));
    ends.push_back(rows);
  }
  return Groups{
      first.as_strided(
          {static_cast<int64_t>(ends.size()), first.size(0), first.size(1)},
          {distance, first.size(1), 1}),
      torch::tensor(ends, torch::kInt).to(first.device())};
}

}  // namespace

bool multiply_grouped(
    const std::vector<LinearOperands>& each,
    GroupedSide side) {
  if (each.size() < 2 || each[0].weight.scalar_type() != torch::kBFloat16)
    return false;
  const bool is_forward = side == GroupedSide::kForward;
  std::vector<const Tensor*> from;
  std::vector<const Tensor*> to;
  for (const LinearOperands& one : each) {
    from.push_back(is_forward ? &one.x : &one.y);
    to.push_back(is_forward ? &one.y : &one.x);
  }
  const auto rows = one_matrix(from);
  const auto results = one_matrix(to);
  if (!rows || !results)
    return false;
  const auto groups = groups_of(each);
  if (!groups)
    return false;
  const auto product = grouped_product(
      *rows,
      is_forward ? groups->weights.transpose(1, 2) : groups->weights,
      groups->ends);
  if (product)
    Tensor(*results).copy_(*product);
  return product.has_value();
}

}  // namespace brigade::ops
