#include "brigade/data_parallel/optimizer_groups.h"

#include <utility>

#include "brigade/base/hash.h"
#include "brigade/data_parallel/owned_runs.h"

namespace brigade {
namespace {

// Of a parameter that has no row: it is whole, and no other rank's name.
ops::RandomBits bits_of(const Param& param, const RunPart& part) {
  ops::RandomBits bits{
      .key = fnv1a_64(param.name), .index = {.begin = part.begin}};
  const Slice& slice = param.cut.slice;
  if (!param.row || slice.dim == kNotCut)
    return bits;
  int64_t inner = 1;
  for (size_t dim = static_cast<size_t>(slice.dim) + 1;
       dim < param.row->shape.size();
       ++dim)
    inner *= param.row->shape[dim];
  const auto dim = static_cast<size_t>(slice.dim);
  bits.index.run = inner * param.cut.shape[dim];
  bits.index.stride = inner * param.row->shape[dim];
  bits.index.offset = inner * slice.begin;
  return bits;
}

}  // namespace

std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules) {
  std::vector<OptimizerGroup> groups;
  for (const OwnedRun& run : cut_owned(sync, group_of)) {
    // A range of padding alone counts as group 0, which need not exist.
    if (run.group == kNoGroup || static_cast<size_t>(run.group) >= rules.size())
      continue;
    std::vector<RunPart> parts = parts_of(sync, run);
    for (RunPart& part : parts)
      part.bits = bits_of(sync.params()[static_cast<size_t>(part.param)], part);
    groups.push_back(
        {.name = run.name(sync),
         .weight = run.weight(sync),
         .main_grad = run.main_grad(sync),
         .rule = rules[static_cast<size_t>(run.group)],
         .param_group = run.group,
         .parts = std::move(parts)});
  }
  return groups;
}

}  // namespace brigade
