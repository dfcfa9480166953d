// The bits of a bf16 tensor's elements, as comm/bf16_wire.h takes them.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

inline uint16_t* bf16_bits(const torch::Tensor& bf16) {
  return static_cast<uint16_t*>(bf16.data_ptr());
}

}  // namespace brigade
