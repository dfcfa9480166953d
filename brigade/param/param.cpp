#include "brigade/param/param.h"

#include <algorithm>
#include <utility>

namespace brigade {

torch::Tensor Param::state(std::string_view state_name) const {
  return find_state(states, state_name);
}

std::vector<std::vector<size_t>> groups_of(std::span<const Param> params) {
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& members) {
          const Param& first = params[members.front()];
          return first.group == params[i].group &&
                 first.mean_divisor == params[i].mean_divisor;
        });
    if (found == groups.end())
      groups.push_back({i});
    else
      found->push_back(i);
  }
  return groups;
}

Param make_param(
    const ParameterRow& row,
    const ModelPart& part,
    ParamShard cut,
    torch::Tensor weight) {
  Param param;
  param.name = row.name;
  param.tensor = std::move(weight);
  param.is_row_sparse = is_row_sparse(row, part);
  param.row = std::make_shared<const ParameterRow>(row);
  param.cut = std::move(cut);
  param.is_copy_for_head = is_copy_for_head(row, part);
  return param;
}

torch::Tensor take_slice(const torch::Tensor& full, const Slice& slice) {
  return slice.dim == kNotCut
             ? full
             : full.narrow(slice.dim, slice.begin, slice.length());
}

torch::Tensor take_shard(
    const torch::Tensor& full,
    const Slice& slice,
    torch::IntArrayRef shape) {
  torch::Tensor part = take_slice(full, slice);
  if (slice.dim == kNotCut)
    return part;
  const auto dim = static_cast<size_t>(slice.dim);
  std::vector<int64_t> padded_shape = part.sizes().vec();
  if (padded_shape[dim] == shape[dim])
    return part;
  padded_shape[dim] = shape[dim];
  torch::Tensor padded = torch::zeros(padded_shape, full.options());
  take_slice(padded, {slice.dim, 0, slice.length()}).copy_(part);
  return padded;
}

}  // namespace brigade
