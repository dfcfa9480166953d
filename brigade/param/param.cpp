#include "brigade/param/param.h"

#include <algorithm>
#include <utility>

namespace brigade {

torch::Tensor Param::state(std::string_view state_name) const {
  const auto found =
      std::find_if(states.begin(), states.end(), [&](const State& state) {
        return state.name == state_name;
      });
  return found == states.end() ? torch::Tensor() : found->tensor;
}

std::vector<ParamsOfGroup> groups_of(const std::vector<Param>& params) {
  std::vector<ParamsOfGroup> groups;
  for (size_t i = 0; i < params.size(); ++i) {
    auto found = std::find_if(
        groups.begin(), groups.end(), [&](const ParamsOfGroup& each) {
          return each.group == params[i].group;
        });
    if (found == groups.end())
      found = groups.insert(groups.end(), {params[i].group, {}});
    found->params.push_back(static_cast<int>(i));
  }
  return groups;
}

Param make_param(
    const ParameterRow& row,
    const ModelPart& part,
    const ShardOptions& shard,
    torch::Tensor weight) {
  Param param;
  param.name = row.name;
  param.tensor = std::move(weight);
  param.is_row_sparse = is_row_sparse(row, part);
  param.row = std::make_shared<const ParameterRow>(row);
  param.cut = shard_parameter(row, shard.tp, shard.tp_rank, shard.tokens);
  param.is_copy_for_head = is_copy_for_head(row, part);
  return param;
}

torch::Tensor take_shard(const torch::Tensor& full, const ParamShard& cut) {
  if (cut.dim == kNotCut)
    return full;
  const auto slice = full.narrow(cut.dim, cut.begin, cut.end - cut.begin);
  if (slice.sizes() == torch::IntArrayRef(cut.shape))
    return slice;
  auto padded = torch::zeros(cut.shape, full.options());
  padded.narrow(cut.dim, 0, cut.end - cut.begin).copy_(slice);
  return padded;
}

}  // namespace brigade
