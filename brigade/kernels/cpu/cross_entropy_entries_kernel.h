// The entries of the vocabulary that the losses of the fused head's tokens
// name: a token's target, or what a teacher finds likely in its place. Both
// sweeps come upon them tile by tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace brigade::ops {

struct HeadEntry {
  int32_t row;      // of the head's weight
  int32_t column;   // of the panel: the token
  int64_t place;    // in the numbers kept of all entries, [tokens, each]
  bool stands_out;  // counts in neither the maximum nor the sum of the token
};

class HeadEntries {
 public:
  // rows: [tokens, each], -1: none; of each token the first `standing_out` ones
  // stand out. A token names a row once.
  HeadEntries(
      std::span<const int64_t> rows,
      int64_t tokens,
      int64_t standing_out = 0);

  // The first entry of each panel that is not before `row`, for a caller that
  // goes through the rows of the weight from there on.
  std::vector<size_t> from(int64_t row) const;
  // The entries of a panel from `next` on whose rows are before `end`; next
  // moves behind them.
  std::span<const HeadEntry> take(int64_t panel, int64_t end, size_t& next)
      const {
    const size_t first = next;
    while (next < begin_[static_cast<size_t>(panel) + 1] &&
           entries_[next].row < end)
      ++next;
    return std::span(entries_).subspan(first, next - first);
  }

 private:
  std::vector<HeadEntry> entries_;  // by panel, then by row
  std::vector<size_t> begin_;       // of each panel, and the end
};

}  // namespace brigade::ops
