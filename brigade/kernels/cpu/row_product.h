// y = x weight^T of few rows, float32 sums inside: what one token of a text
// asks of a linear. Its time is that of reading the weight, so each element of
// it is read once, in the order in which it lies, and nothing is packed.
#pragma once

#include <cstdint>

namespace brigade::ops {

// With more rows a packed product is quicker.
constexpr int64_t kMostProductRows = 4;

template <typename T>  // float or uint16_t (bf16)
struct RowProduct {
  const T* x;       // [rows, depth], rows x_stride apart
  const T* weight;  // [columns, depth], rows weight_stride apart
  const T* bias;    // [columns]; null: none
  T* y;             // [rows, columns], rows y_stride apart
  int64_t rows, depth;
  int64_t x_stride, weight_stride, y_stride;
};

// The columns [begin, end), each element rounded once. One does not depend on
// those beside it: on the rows, or on how the columns are divided.
template <typename T>
void row_product(const RowProduct<T>& p, int64_t begin, int64_t end);

}  // namespace brigade::ops
