// Float32 to bf16, up or down at random, with the probabilities that make the
// mean right: what a moment changes by less than half of bf16's last bit is not
// lost step after step.
//
// Random bits come from a counter, not from a generator's state: which bits an
// element gets depends on a key and its place in the whole tensor, never on the
// ranges that ranks have of it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <limits>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// Where consecutive elements of a shard stand in the whole tensor.
struct WholeIndex {
  int64_t begin = 0;  // the first one's place in the shard
  // So many of the shard are neighbours in the whole too; from one such run to
  // the next it is `stride` elements there.
  int64_t run = std::numeric_limits<int64_t>::max();
  int64_t stride = 0;
  int64_t offset = 0;  // of the shard's first element

  // The place of the i-th of them.
  int64_t operator()(int64_t i) const {
    const int64_t at = begin + i;
    return at / run * stride + offset + at % run;
  }
};

// The random bits of a tensor's elements.
struct RandomBits {
  uint64_t key = 0;
  WholeIndex index;
};

// 32 bits of an element.
inline uint32_t random_word(uint64_t key, uint64_t index) {
  // The finaliser of C. Wellons' "lowbias32", over both halves of the counter.
  const auto mix = [](uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    return x ^ (x >> 16);
  };
  const auto low = static_cast<uint32_t>(index);
  const auto high = static_cast<uint32_t>(index >> 32);
  return mix(
      mix(low + static_cast<uint32_t>(key)) + high +
      static_cast<uint32_t>(key >> 32));
}

// rounded = values. Both flat and contiguous, of one length; float32, bf16.
// What bf16 can hold, infinities and NaN stay; a finite value stays finite.
void round_stochastically(
    const Tensor& values,
    Tensor rounded,
    const RandomBits& bits,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
