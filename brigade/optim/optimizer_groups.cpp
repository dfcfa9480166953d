#include "brigade/optim/optimizer_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace brigade {
namespace {

// The parameters of a segment of which this rank owns something, in the order
// of memory.
std::vector<RunPart> owned_parts_of(
    const GradSync& sync,
    const FlatSegment& segment) {
  std::vector<RunPart> parts;
  for (const RunPart& slot : segment.slots) {
    const RunPart& part = sync.params()[static_cast<size_t>(slot.param)].owned;
    if (part.numel > 0)
      parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
    return a.offset < b.offset;
  });
  return parts;
}

// Makes the group of a range of a segment's owned part, in which parameters
// have `parts`.
OptimizerGroup make_group(
    const GradSync& sync,
    size_t index,
    const FlatRange& range,
    std::vector<RunPart> parts) {
  const FlatSegment& segment = sync.segments()[index];
  for (RunPart& part : parts)
    part.offset -= range.begin;
  const int64_t end = range.begin + range.numel;
  return {
      .name = range.numel == segment.owned.numel
                  ? fmt::format("bucket {}", index)
                  : fmt::format("bucket {} [{}:{}]", index, range.begin, end),
      .weight = segment.owned_weight().narrow(0, range.begin, range.numel),
      .main_grad =
          segment.owned_main_grad().narrow(0, range.begin, range.numel),
      .memory = sync.memory().flat_memory(),
      .parts = std::move(parts)};
}

}  // namespace

std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules) {
  std::vector<OptimizerGroup> groups;
  for (size_t s = 0; s < sync.segments().size(); ++s) {
    const FlatSegment& segment = sync.segments()[s];
    const std::vector<RunPart> parts = owned_parts_of(sync, segment);
    const auto group_at = [&](size_t i) {
      return i < parts.size() ? group_of.at(static_cast<size_t>(parts[i].param))
                              : 0;
    };
    int64_t begin = 0;
    // Padding belongs to the parameter before it.
    for (size_t first = 0; begin < segment.owned.numel;) {
      const int param_group = group_at(first);
      size_t last = first;
      while (last < parts.size() && group_at(last) == param_group)
        ++last;
      const int64_t end =
          last < parts.size() ? parts[last].offset : segment.owned.numel;
      // There may be no parameter group 0.
      if (param_group != kNoGroup &&
          static_cast<size_t>(param_group) < rules.size()) {
        OptimizerGroup& group = groups.emplace_back(make_group(
            sync,
            s,
            {begin, end - begin},
            {parts.begin() + static_cast<std::ptrdiff_t>(first),
             parts.begin() + static_cast<std::ptrdiff_t>(last)}));
        group.rule = rules[static_cast<size_t>(param_group)];
        group.param_group = param_group;
      }
      first = last;
      begin = end;
    }
  }
  return groups;
}

std::optional<std::vector<RunPart>> parts_of(
    const GradSync& sync,
    const torch::Tensor& stepped) {
  if (const int param = sync.param_set().index_of(stepped); param >= 0)
    return std::vector{RunPart{.param = param, .numel = stepped.numel()}};
  const auto index = sync.memory().segment_of(stepped);
  if (!index)
    return std::nullopt;
  const FlatSegment& segment = sync.segments()[*index];
  const int64_t first = *segment.owned_offset(stepped);
  std::vector<RunPart> parts;
  for (RunPart part : owned_parts_of(sync, segment)) {
    const int64_t begin = std::max(part.offset, first);
    const int64_t end =
        std::min(part.offset + part.numel, first + stepped.numel());
    if (begin >= end)
      continue;
    part.begin += begin - part.offset;
    part.offset = begin - first;
    part.numel = end - begin;
    parts.push_back(part);
  }
  return parts;
}

}  // namespace brigade
