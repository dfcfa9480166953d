#include "brigade/data_parallel/owned_runs.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {
namespace {

// The parameters of a segment in the order of memory.
std::vector<int> params_in_memory(const FlatSegment& segment) {
  std::vector<BucketSlot> slots = segment.slots;
  std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
    return a.offset_numel < b.offset_numel;
  });
  std::vector<int> params;
  params.reserve(slots.size());
  for (const BucketSlot& slot : slots)
    params.push_back(slot.param);
  return params;
}

}  // namespace

torch::Tensor OwnedRun::weight(const GradSync& sync) const {
  return sync.segments()[segment].owned_weight().narrow(0, offset, numel);
}

torch::Tensor OwnedRun::main_grad(const GradSync& sync) const {
  return sync.segments()[segment].owned_main_grad().narrow(0, offset, numel);
}

std::string OwnedRun::name(const GradSync& sync) const {
  if (numel == sync.segments()[segment].owned.numel)
    return fmt::format("bucket {}", segment);
  return fmt::format("bucket {} [{}:{}]", segment, offset, offset + numel);
}

std::vector<OwnedRun> cut_owned(
    const GradSync& sync,
    const std::vector<int>& group_of) {
  std::vector<OwnedRun> runs;
  for (size_t s = 0; s < sync.segments().size(); ++s) {
    const FlatSegment& segment = sync.segments()[s];
    const int64_t end = segment.owned.numel;
    const size_t first = runs.size();
    for (const int param : params_in_memory(segment)) {
      const RunPart& part = sync.owned_parts()[static_cast<size_t>(param)];
      if (part.numel == 0)
        continue;
      const int group = group_of.at(static_cast<size_t>(param));
      if (runs.size() == first) {
        runs.push_back({s, 0, end, group});
      } else if (runs.back().group != group) {
        runs.back().numel = part.offset - runs.back().offset;
        runs.push_back({s, part.offset, end - part.offset, group});
      }
    }
    if (runs.size() == first && end > 0)
      runs.push_back({s, 0, end, 0});
  }
  return runs;
}

std::optional<OwnedRun> find_owned(
    const GradSync& sync,
    const torch::Tensor& weight) {
  for (size_t s = 0; s < sync.segments().size(); ++s) {
    const torch::Tensor owned = sync.segments()[s].owned_weight();
    const int64_t offset = weight.storage_offset() - owned.storage_offset();
    if (weight.is_alias_of(owned) && offset >= 0 &&
        offset + weight.numel() <= owned.numel())
      return OwnedRun{.segment = s, .offset = offset, .numel = weight.numel()};
  }
  return std::nullopt;
}

std::vector<RunPart> parts_of(const GradSync& sync, const OwnedRun& run) {
  std::vector<RunPart> parts;
  for (const int param : params_in_memory(sync.segments()[run.segment])) {
    const RunPart& owned = sync.owned_parts()[static_cast<size_t>(param)];
    const int64_t begin = std::max(owned.offset, run.offset);
    const int64_t end =
        std::min(owned.offset + owned.numel, run.offset + run.numel);
    if (begin < end) {
      parts.push_back(
          {param,
           owned.begin + begin - owned.offset,
           begin - run.offset,
           end - begin,
           run.segment});
    }
  }
  return parts;
}

std::optional<std::vector<RunPart>> parts_of(
    const GradSync& sync,
    const torch::Tensor& stepped) {
  for (size_t i = 0; i < sync.params().size(); ++i) {
    if (sync.params()[i].tensor.is_same(stepped))
      return std::vector{
          RunPart{.param = static_cast<int>(i), .numel = stepped.numel()}};
  }
  if (sync.options().handover == GradHandover::kMainGrad) {
    if (const auto run = find_owned(sync, stepped))
      return parts_of(sync, *run);
  }
  return std::nullopt;
}

}  // namespace brigade
