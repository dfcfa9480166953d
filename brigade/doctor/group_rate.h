// How quick the messages of a group of ranks are.
#pragma once

#include <cstdint>

#include "brigade/comm/communicator.h"

namespace brigade {

struct GroupRate {
  double latency_us = 0;           // of an all-reduce of 4 bytes
  double all_reduce_gb_per_s = 0;  // bytes that a rank sends, by time
  double exchange_gb_per_s = 0;    // all-to-all, the same
};

// Collective. The medians of several repetitions with `bytes` of float32 on the
// group's device.
GroupRate measure_group(Communicator& group, int64_t bytes);

}  // namespace brigade
