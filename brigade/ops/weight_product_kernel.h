// A linear's weight gradient in bf16 on AMX tiles: for other processors, and
// for float32, oneDNN's product is as fast.
#pragma once

#include <cstdint>

namespace brigade::ops {

struct WeightProduct {
  const uint16_t* output_grad;  // [tokens, out], rows output_grad_stride apart
  const uint16_t* x;            // [tokens, in], rows x_stride apart
  float* weight_grad;           // [out, in], dense
  int64_t tokens, out, in;
  int64_t output_grad_stride, x_stride;
};

// Whether this processor and these sizes are what add_weight_product() takes.
bool has_weight_product(int64_t out, int64_t in);

// weight_grad += output_grad^T x, by the calling thread's team; an element's
// sum does not depend on the number of threads.
void add_weight_product(const WeightProduct& p);

}  // namespace brigade::ops
