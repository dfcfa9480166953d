#include "brigade/data/permutation.h"

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/hash.h"

namespace brigade {

Permutation::Permutation(uint64_t size, uint64_t seed) : size_(size) {
  BRIGADE_ASSERT(size > 0, "a permutation of nothing");
  uint64_t state = mix_bits(seed);
  for (int round = 0; round < kRounds; ++round) {
    state = mix_bits(state);
    round_keys_[round] = state;
    state = mix_bits(state);
    reflections_[round] = state % size;
  }
}

uint64_t Permutation::operator()(uint64_t position) const {
  BRIGADE_ASSERT(position < size_, "{} of {}", position, size_);
  uint64_t x = position;
  for (int round = 0; round < kRounds; ++round) {
    // K - x mod size, without leaving the range of uint64_t.
    const uint64_t k = reflections_[round];
    const uint64_t partner = k >= x ? k - x : size_ - (x - k);
    // Both partners must see the same bit, so it depends on their maximum.
    const uint64_t bit =
        mix_bits(round_keys_[round] ^ std::max(x, partner)) >> 63;
    x = bit != 0 ? partner : x;
  }
  return x;
}

}  // namespace brigade
