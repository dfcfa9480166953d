// A range of flat memory or of flat values.
#pragma once

#include <cstdint>

namespace brigade {

// Neighbours: elements [begin, begin + numel).
struct FlatRange {
  int64_t begin = 0;
  int64_t numel = 0;
};

// The rank-th of `ranks` equal ranges: what a reduce-scatter leaves and an
// all-gather takes. Precondition: `numel` divides by `ranks`.
constexpr FlatRange owned_range(int64_t numel, int rank, int ranks) {
  return {.begin = numel / ranks * rank, .numel = numel / ranks};
}

}  // namespace brigade
