// Rows of a mixture of experts: a block of threads per row, token or pair.
#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

template <typename T>
__global__ void rows_of_pairs(RowsOfPairs c) {
  const int64_t row = blockIdx.x;
  const int64_t pair = c.pair_of_row[row];
  const float weight = c.weights == nullptr ? 1.0f : c.weights[pair];
  const void* from = row_of<T>(c.x.at, pair / c.per_token, c.x.stride);
  void* to = row_of<T>(c.rows.at, row, c.rows.stride);
  for (int64_t i = threadIdx.x; i < c.columns / Pack<T>::kNumel;
       i += blockDim.x) {
    const Pack<T> values = load<T>(from, i);
    Pack<T> out;
    for (int j = 0; j < Pack<T>::kNumel; ++j)
      out.set(j, values.at(j) * weight);
    store(to, i, out);
  }
}

template <typename T>
__global__ void sum_of_pairs(SumOfPairs c) {
  const int64_t token = blockIdx.x;
  const int64_t first = token * c.per_token;
  void* to = row_of<T>(c.sum.at, token, c.sum.stride);
  for (int64_t i = threadIdx.x; i < c.columns / Pack<T>::kNumel;
       i += blockDim.x) {
    float sum[Pack<T>::kNumel] = {};
    for (int64_t pair = first; pair < first + c.per_token; ++pair) {
      const float weight = c.weights == nullptr ? 1.0f : c.weights[pair];
      const Pack<T> values =
          load<T>(row_of<T>(c.rows.at, c.row_of_pair[pair], c.rows.stride), i);
      for (int j = 0; j < Pack<T>::kNumel; ++j)
        sum[j] += values.at(j) * weight;
    }
    Pack<T> out;
    for (int j = 0; j < Pack<T>::kNumel; ++j)
      out.set(j, sum[j]);
    store(to, i, out);
  }
}

template <typename T>
__global__ void products_of_pairs(ProductsOfPairs c) {
  const int64_t pair = blockIdx.x;
  const void* row = row_of<T>(c.rows.at, c.row_of_pair[pair], c.rows.stride);
  const void* x = row_of<T>(c.x.at, pair / c.per_token, c.x.stride);
  float sum = 0;
  for (int64_t i = threadIdx.x; i < c.columns / Pack<T>::kNumel;
       i += blockDim.x) {
    const Pack<T> a = load<T>(row, i);
    const Pack<T> b = load<T>(x, i);
    for (int j = 0; j < Pack<T>::kNumel; ++j)
      sum += a.at(j) * b.at(j);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0)
    c.products[pair] = sum;
}

}  // namespace

void launch_rows_of_pairs(
    Element element,
    const RowsOfPairs& call,
    CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(call.numel);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    rows_of_pairs<T><<<blocks, threads_of<T>(call.columns), 0, stream>>>(call);
  });
  check_launch("rows_of_pairs");
}

void launch_sum_of_pairs(
    Element element,
    const SumOfPairs& call,
    CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(call.tokens);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    sum_of_pairs<T><<<blocks, threads_of<T>(call.columns), 0, stream>>>(call);
  });
  check_launch("sum_of_pairs");
}

void launch_products_of_pairs(
    Element element,
    const ProductsOfPairs& call,
    CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(call.pairs);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    products_of_pairs<T>
        <<<blocks, threads_of<T>(call.columns), 0, stream>>>(call);
  });
  check_launch("products_of_pairs");
}

}  // namespace brigade::ops::cuda
