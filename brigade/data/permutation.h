// A seeded permutation of [0, size) that needs no memory: each value is
// computed on its own, so a run can resume at any place.
#pragma once

#include <array>
#include <cstdint>

namespace brigade {

// The swap-or-not shuffle of Hoang, Morris and Rogaway ("An enciphering scheme
// based on a card shuffle", CRYPTO 2012). In each round the elements x and
// K - x (mod size) swap places or not by one random bit that both of them
// compute; 64 rounds bring any size close to uniform. A pure value:
// thread-safe.
class Permutation {
 public:
  // Precondition: size > 0.
  Permutation(uint64_t size, uint64_t seed);

  uint64_t size() const { return size_; }
  // A bijection of [0, size). Precondition: position < size. O(1).
  uint64_t operator()(uint64_t position) const;

 private:
  static constexpr int kRounds = 64;
  uint64_t size_;
  std::array<uint64_t, kRounds> round_keys_;
  std::array<uint64_t, kRounds> reflections_;  // K of each round, < size
};

}  // namespace brigade
