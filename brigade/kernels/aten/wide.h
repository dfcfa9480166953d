// Dtypes and products of the ATen kernels.
#pragma once

#include <torch/types.h>

#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// x in the dtype in which its results are computed.
inline Tensor wide(const Tensor& x) {
  return x.to(wide_dtype(x));
}

// a b, batched or not, summed in the wide dtype: rounded to the operands' dtype
// once, or not at all by wide_product(). On the CPU libtorch rounds the partial
// sums of a bf16 product, so that its operands are widened first.
Tensor rounded_product(const Tensor& a, const Tensor& b);
Tensor wide_product(const Tensor& a, const Tensor& b);

// What the gradient of a head's logits [rows, valid] becomes: dhidden [rows,
// C], overwritten, and dweight [V, C], to whose first rows it is added; either
// may be undefined. The gradient is of the operands' dtype, or wide.
struct HeadProducts {
  Tensor hidden;  // [rows, C]
  Tensor weight;  // [valid, C]
};
void add_head_products(
    const Tensor& gradient,
    const HeadProducts& of,
    Tensor dhidden,
    Tensor dweight);

// x rotated by the rows of the table, in the wide dtype.
Tensor
rotated(const Tensor& x, const RotaryTable& table, RotaryDirection direction);

}  // namespace brigade::ops
