#include "brigade/data_parallel/optimizer_groups.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {
namespace {

// Elements [begin, end) of a segment, stepped with one weight decay.
struct Run {
  int64_t begin = 0;
  int64_t end = 0;
  double weight_decay = 0;
};

// The slots in the order of memory.
std::vector<BucketSlot> sorted_slots(const GradSegment& segment) {
  std::vector<BucketSlot> slots = segment.slots;
  std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
    return a.offset_numel < b.offset_numel;
  });
  return slots;
}

}  // namespace

OptimizerGroups make_optimizer_groups(
    const GradSync& sync,
    const DecayRule& weight_decay) {
  OptimizerGroups result;
  result.places.resize(sync.params().size());
  const auto& segments = sync.segments();
  for (size_t s = 0; s < segments.size(); ++s) {
    const GradSegment& segment = segments[s];
    const int64_t numel = segment.owned.numel;
    std::vector<Run> runs;
    for (const BucketSlot& slot : sorted_slots(segment)) {
      const OwnedPart& part =
          sync.owned_parts().at(static_cast<size_t>(slot.param));
      if (part.numel == 0)
        continue;
      const double decay =
          weight_decay(sync.params().at(static_cast<size_t>(slot.param)));
      if (runs.empty() || runs.back().weight_decay != decay) {
        // Padding before a slot belongs to the run that ends there.
        const int64_t begin = runs.empty() ? 0 : part.offset;
        if (!runs.empty())
          runs.back().end = begin;
        runs.push_back({begin, numel, decay});
      }
      result.places.at(static_cast<size_t>(slot.param)) = {
          result.groups.size() + runs.size() - 1,
          part.offset - runs.back().begin,
          part.begin,
          part.numel};
    }
    // A range of padding alone.
    if (runs.empty() && numel > 0)
      runs.push_back({0, numel, 0});
    for (const Run& run : runs) {
      const int64_t length = run.end - run.begin;
      result.groups.push_back(
          {runs.size() == 1
               ? fmt::format("bucket {}", s)
               : fmt::format("bucket {} [{}:{}]", s, run.begin, run.end),
           segment.owned_weight().narrow(0, run.begin, length),
           segment.owned_main_grad().narrow(0, run.begin, length),
           run.weight_decay});
    }
  }
  return result;
}

}  // namespace brigade
