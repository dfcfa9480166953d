// Which pieces share a sequence: best fit decreasing. The longest piece comes
// first, and each goes where the least room is left that takes it (D. S.
// Johnson, "Near-optimal bin packing algorithms", 1973; of training data: Ding
// et al., "Fewer truncations improve language modeling", arXiv:2404.10830).
//
// PURE: a function of how many pieces there are of each length, so that every
// epoch has as many sequences, whichever piece of a length is where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace brigade {

// Pieces have numbers by length, the longest first. Sequence s holds the pieces
// pieces[begins[s]], ..., pieces[begins[s + 1] - 1].
struct PackingPlan {
  std::vector<uint64_t> begins;  // one more than there are sequences
  std::vector<uint64_t> pieces;  // each number once

  // As few as best fit needs.
  uint64_t num_sequences() const { return begins.size() - 1; }
  // The pieces of one sequence, the longest first. Precondition: sequence <
  // num_sequences().
  std::span<const uint64_t> pieces_of(uint64_t sequence) const {
    return std::span(pieces).subspan(
        begins[sequence], begins[sequence + 1] - begins[sequence]);
  }
};

// counts[n]: how many pieces there are of length n, for n from 0 to the length
// of a sequence, counts.size() - 1. Where sequences have as much left, the one
// that came to it last is taken. O(pieces * log(counts.size())); 16 bytes per
// piece while it works.
//
// Precondition: counts[0] is 0.
PackingPlan pack_best_fit(std::span<const uint64_t> counts);

}  // namespace brigade
