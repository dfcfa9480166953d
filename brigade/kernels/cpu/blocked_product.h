// Matrix products in float32 with 256-bit fused multiply-adds, for processors
// without AVX512. bf16 operands are widened as they are packed: a bf16 value is
// a float32 too, so that only the order of the sums differs from a wide copy.
//
// Blocked as Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008): a panel of the right operand stays in the first-level
// cache, a block of the left one in the second.
#pragma once

#include <cstdint>

namespace brigade::ops {

// A matrix of float32 or bf16, dense in one of its two dims.
struct ProductOperand {
  const void* data;
  bool is_bf16;
  int64_t row, column;  // strides in elements
};

// c [m, n] = or += a [m, k] b [k, n].
struct BlockedProduct {
  ProductOperand a, b;
  void* c;  // rows c_row elements apart, dense; rounded once where it is bf16
  bool c_is_bf16;
  int64_t c_row;
  int64_t m, n, k;
  bool add;           // not with a c of bf16
  const float* bias;  // [n], added to each row; null: none
};

// Whether this processor's vectors are what blocked_product() is made for.
bool has_blocked_product();

// By the calling thread's team; an element does not depend on its size.
void blocked_product(const BlockedProduct& p);

}  // namespace brigade::ops
