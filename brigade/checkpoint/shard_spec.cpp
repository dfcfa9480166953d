#include "brigade/checkpoint/shard_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace brigade {

std::vector<int64_t> ShardSpec::shape() const {
  std::vector<int64_t> shape;
  for (const DimRange& range : ranges)
    shape.push_back(range.numel());
  return shape;
}

int64_t ShardSpec::numel() const {
  int64_t numel = 1;
  for (const DimRange& range : ranges)
    numel *= range.numel();
  return numel;
}

ShardSpec whole_tensor(std::vector<int64_t> full_shape) {
  ShardSpec spec;
  for (int64_t dim : full_shape)
    spec.ranges.push_back({0, dim});
  spec.full_shape = std::move(full_shape);
  return spec;
}

std::string to_string(const ShardSpec& spec) {
  std::vector<std::string> ranges;
  for (const DimRange& range : spec.ranges)
    ranges.push_back(fmt::format("{}:{}", range.begin, range.end));
  return fmt::format(
      "[{}] of [{}]",
      fmt::join(ranges, ", "),
      fmt::join(spec.full_shape, ", "));
}

void for_each_run(const ShardSpec& spec, const CopyRun& run) {
  if (spec.numel() == 0)
    return;
  const size_t rank = spec.full_shape.size();
  // The innermost dims that are whole make one run with the dim before them.
  size_t outer_dims = rank;
  int64_t run_numel = 1;
  bool inner_whole = true;
  while (outer_dims > 0 && inner_whole) {
    --outer_dims;
    const DimRange& range = spec.ranges[outer_dims];
    run_numel *= range.numel();
    inner_whole = range.numel() == spec.full_shape[outer_dims];
  }
  std::vector<int64_t> strides(rank, 1);
  for (size_t dim = rank; dim-- > 1;)
    strides[dim - 1] = strides[dim] * spec.full_shape[dim];
  int64_t first = 0;
  for (size_t dim = 0; dim < rank; ++dim)
    first += spec.ranges[dim].begin * strides[dim];

  std::vector<int64_t> index(outer_dims, 0);
  for (int64_t destination = 0; destination < spec.numel();
       destination += run_numel) {
    int64_t source = first;
    for (size_t dim = 0; dim < outer_dims; ++dim)
      source += index[dim] * strides[dim];
    run(source, destination, run_numel);
    for (size_t dim = outer_dims; dim-- > 0;) {
      if (++index[dim] < spec.ranges[dim].numel())
        break;
      index[dim] = 0;
    }
  }
}

}  // namespace brigade
