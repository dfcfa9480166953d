// Options of gradients that are sent with low rank (powersgd_hook() in
// data_parallel/bucket_hook.h); distributed.powersgd_rank. PURE.
#pragma once

#include <cstdint>

namespace brigade {

struct PowerSgdOptions {
  int rank = 4;  // columns of the two factors
  // The number of first steps that reduce gradients as they are, because early
  // gradients are not of low rank.
  int64_t exact_steps = 0;
};

}  // namespace brigade
