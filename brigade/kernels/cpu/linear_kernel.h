// A linear's three products in bf16 on small tiles, float32 sums inside.
// linear_call.cpp says when it is these and when others.
#pragma once

#include <cstdint>

namespace brigade::ops {

// With fewer rows, packing the weight takes longer than it saves.
constexpr int64_t kFewestTileRows = 32;

// Whether this processor and a weight of [out, in] are what linear_product()
// takes, and add_weight_product().
bool has_linear_kernel(int64_t out, int64_t in);
bool has_weight_kernel(int64_t out, int64_t in);

// y = alpha x weight^T + beta addend, or with x weight where weight_in_rows,
// each element rounded once.
struct LinearProduct {
  const uint16_t* x;       // [rows, depth], rows x_stride apart
  const uint16_t* weight;  // [columns, depth] or [depth, columns], dense
  uint16_t* y;             // [rows, columns], rows y_stride apart
  int64_t rows, columns, depth;
  int64_t x_stride, y_stride;
  bool weight_in_rows;
  float alpha = 1;                   // without an addend 1
  const uint16_t* addend = nullptr;  // [rows, columns], dense; null: none
  float beta = 0;
  // y [rows, rows] is known to be: what is below its diagonal is multiplied and
  // mirrored. Where has_linear_kernel(rows, rows).
  bool is_symmetric = false;
};

// By the calling thread's team; an element does not depend on its size, here
// and below.
void linear_product(const LinearProduct& p);

// weight_grad += output_grad^T x.
struct WeightProduct {
  const uint16_t* output_grad;  // [tokens, out], rows output_grad_stride apart
  const uint16_t* x;            // [tokens, in], rows x_stride apart
  float* weight_grad;           // [out, in], dense
  int64_t tokens, out, in;
  int64_t output_grad_stride, x_stride;
};
void add_weight_product(const WeightProduct& p);

}  // namespace brigade::ops
