// Conversion of float32 values to bf16 for sending, half the bytes. Works on
// ranges of memory, on the calling thread, which may be the communicator's own.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

// The bits of a bf16 tensor's elements.
inline uint16_t* bf16_bits(const torch::Tensor& bf16) {
  return static_cast<uint16_t*>(bf16.data_ptr());
}

// Conversions; narrow_to_bf16() rounds to nearest even, and a NaN stays one.
void narrow_to_bf16(const float* from, uint16_t* to, int64_t count);
void widen_from_bf16(const uint16_t* from, float* to, int64_t count);

// sum[i] = a[i] + b[i], rounded once; sum may be a or b.
void add_bf16(
    uint16_t* sum,
    const uint16_t* a,
    const uint16_t* b,
    int64_t count);

struct Bf16Rows {
  const uint16_t* first;
  int64_t count;
  int64_t stride;  // elements from one row to the next
};

// sum[i] += the rows' i-th elements, in float32 and in the rows' order, then
// rounded to bf16, which `rounded` also gets.
void add_bf16_rows(
    float* sum,
    uint16_t* rounded,
    const Bf16Rows& rows,
    int64_t count);

}  // namespace brigade
