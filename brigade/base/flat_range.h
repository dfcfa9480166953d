// Ranges of flat memory or of flat values, and which elements of parameters are
// in them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade {

// Neighbours: elements [begin, begin + numel).
struct FlatRange {
  int64_t begin = 0;
  int64_t numel = 0;
};

// Elements [begin, begin + numel) of a parameter, flat, which are at `offset`
// of a run of flat memory: a bucket, the range of it that a rank owns, or a
// range that an optimizer steps.
struct RunPart {
  int param = 0;  // its index among those that the run is made of
  int64_t begin = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  size_t run = 0;  // which of several runs, in a list of their parts
  bool operator==(const RunPart&) const = default;
};

// The rank-th of `ranks` equal ranges: what a reduce-scatter leaves and an
// all-gather takes. Precondition: `numel` divides by `ranks`.
constexpr FlatRange owned_range(int64_t numel, int rank, int ranks) {
  return {.begin = numel / ranks * rank, .numel = numel / ranks};
}

}  // namespace brigade
