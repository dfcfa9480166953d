// The CPU kernels of rows of experts. T: float or uint16_t (bf16). All rows are
// dense and `columns` long.
#pragma once

#include <cstdint>

namespace brigade::ops {

// As KernelSet's functions of these names; weights null: ones.
template <typename T>
struct RowsOfPairs {
  const T* x;
  const int64_t* pair_of_row;
  const float* weights;
  T* rows;
  int64_t columns, per_token;
};
template <typename T>
struct SumOfPairs {
  const T* rows;
  const int64_t* row_of_pair;
  const float* weights;
  T* sum;
  int64_t columns, per_token;
};
template <typename T>
struct ProductsOfPairs {
  const T* rows;
  const T* x;
  const int64_t* row_of_pair;
  float* products;
  int64_t columns, per_token;
};

// Rows, tokens or tokens [begin, end), on the calling thread.
template <typename T>
void rows_of_pairs(const RowsOfPairs<T>&, int64_t begin, int64_t end);
template <typename T>
void sum_of_pairs(const SumOfPairs<T>&, int64_t begin, int64_t end);
template <typename T>
void products_of_pairs(const ProductsOfPairs<T>&, int64_t begin, int64_t end);

}  // namespace brigade::ops
