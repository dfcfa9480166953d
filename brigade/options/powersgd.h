// Gradients that are sent with low rank. PURE.
#pragma once

#include <cstdint>

namespace brigade {

// Options of powersgd_hook() (data_parallel/bucket_hook.h).
struct PowerSgdOptions {
  int rank = 4;  // distributed.powersgd_rank: columns of the two factors
  // The number of first steps that reduce gradients as they are, because early
  // gradients are not of low rank.
  int64_t exact_steps = 0;
};

}  // namespace brigade
