// Dropout of the input of low-rank adapters (options/adapter.h). Whether an
// element is zeroed depends on its token, the linear and its place in the
// linear's whole input, never on where it is computed or how often: random bits
// come from a counter, as those of stochastic_rounding.h.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// The dropout of the input of some linears, on this rank.
struct InputDropout {
  double rate = 0;  // the probability that an element is zeroed; below 1
  // int64, one for each row of the input: random bits, of the row's token.
  // Undefined: nothing is zeroed.
  Tensor token_keys = {};
  int64_t first_feature = 0;  // the first column's place in the whole input

  bool is_used() const { return rate > 0 && token_keys.defined(); }
  // Elements with a random word below it are zeroed; a word has 32 bits.
  uint32_t threshold() const { return static_cast<uint32_t>(rate * 0x1p32); }
};

// rows: [M, features], contiguous, float32 or bf16, zeroed in place. `key`:
// random bits, of the linear. What is kept is not divided by 1 - rate.
void drop_elements(
    Tensor rows,
    const InputDropout& dropout,
    uint64_t key,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
