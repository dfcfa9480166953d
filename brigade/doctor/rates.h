// How quick a machine is at what layouts differ in: messages of a group of
// ranks, and the products of experts.
#pragma once

#include <torch/types.h>

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

// Floating-point operations per second of experts, each of which gets few
// tokens: the forward of 16 matrices, 1024 x 1024, one after the other with
// `rows` tokens each. The best of several runs, as peak_flops().
double expert_flops(const torch::TensorOptions& options, int64_t rows);

}  // namespace brigade
