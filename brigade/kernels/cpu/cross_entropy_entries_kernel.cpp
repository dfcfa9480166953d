#include "brigade/kernels/cpu/cross_entropy_entries_kernel.h"

#include <algorithm>
#include <limits>

#include "brigade/base/check.h"
#include "brigade/kernels/cpu/tile_product.h"

namespace brigade::ops {

HeadEntries::HeadEntries(
    std::span<const int64_t> rows,
    int64_t tokens,
    int64_t standing_out)
    : begin_{0} {
  const int64_t each =
      tokens == 0 ? 0 : static_cast<int64_t>(rows.size()) / tokens;
  for (int64_t first = 0; first < tokens; first += kPanel) {
    const int64_t end = std::min(first + kPanel, tokens);
    for (int64_t place = first * each; place < end * each; ++place) {
      const int64_t row = rows[static_cast<size_t>(place)];
      if (row < 0)
        continue;
      BRIGADE_ASSERT(
          row <= std::numeric_limits<int32_t>::max() - kPanel,
          "rows of the head's weight are counted in 32 bits");
      entries_.push_back(
          {static_cast<int32_t>(row),
           static_cast<int32_t>(place / each - first),
           place,
           place % each < standing_out});
    }
    std::sort(
        entries_.begin() + static_cast<std::ptrdiff_t>(begin_.back()),
        entries_.end(),
        [](const HeadEntry& a, const HeadEntry& b) { return a.row < b.row; });
    begin_.push_back(entries_.size());
  }
}

std::vector<size_t> HeadEntries::from(int64_t row) const {
  std::vector<size_t> next;
  for (size_t panel = 0; panel + 1 < begin_.size(); ++panel) {
    const auto first =
        entries_.begin() + static_cast<std::ptrdiff_t>(begin_[panel]);
    const auto end =
        entries_.begin() + static_cast<std::ptrdiff_t>(begin_[panel + 1]);
    const auto found = std::partition_point(
        first, end, [&](const HeadEntry& entry) { return entry.row < row; });
    next.push_back(static_cast<size_t>(found - entries_.begin()));
  }
  return next;
}

}  // namespace brigade::ops
