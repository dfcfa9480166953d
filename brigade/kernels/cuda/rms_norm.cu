// RMSNorm, a block of threads per row. See ops/rms_norm.h for the formula;
// backward, with n = x rstd and g = dnormed (weight_offset + weight):
//   dx = (g - n mean(g n)) rstd,  dweight = sum over rows of dnormed n
#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

template <typename T>
__global__ void rms_norm(RmsNorm norm) {
  const int64_t row = blockIdx.x;
  const int64_t packs = norm.columns / Pack<T>::kNumel;
  const void* x = row_of<T>(norm.x, row, norm.columns);
  const void* summed = x;
  float squares = 0;
  if (norm.residual != nullptr) {
    const void* residual = row_of<T>(norm.residual, row, norm.columns);
    void* sum = row_of<T>(norm.sum, row, norm.columns);
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      Pack<T> values = load<T>(x, i);
      const Pack<T> other = load<T>(residual, i);
      for (int j = 0; j < Pack<T>::kNumel; ++j) {
        values.set(j, values.at(j) + other.at(j));
        squares += values.at(j) * values.at(j);
      }
      store(sum, i, values);
    }
    summed = sum;  // each thread reads again what it wrote itself
  } else {
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const Pack<T> values = load<T>(x, i);
      for (int j = 0; j < Pack<T>::kNumel; ++j)
        squares += values.at(j) * values.at(j);
    }
  }
  const float mean = block_sum(squares) / static_cast<float>(norm.columns);
  const float rstd = 1.0f / sqrtf(mean + norm.eps);
  if (threadIdx.x == 0)
    norm.rstd[row] = rstd;
  void* normed = row_of<T>(norm.normed, row, norm.columns);
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> values = load<T>(summed, i);
    const Pack<T> weight = load<T>(norm.weight, i);
    for (int j = 0; j < Pack<T>::kNumel; ++j)
      values.set(j, values.at(j) * rstd * (weight.at(j) + norm.weight_offset));
    store(normed, i, values);
  }
}

template <typename T>
__global__ void rms_norm_backward(RmsNormBackward norm) {
  // A thread has the same columns in each row, alone.
  extern __shared__ float dweight[];
  constexpr int kNumel = Pack<T>::kNumel;
  const int64_t packs = norm.columns / kNumel;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    for (int j = 0; j < kNumel; ++j)
      dweight[i * kNumel + j] = 0;
  }
  for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const void* dnormed = row_of<T>(norm.dnormed, row, norm.columns);
    const void* x = row_of<T>(norm.x, row, norm.columns);
    const float rstd = norm.rstd[row];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const Pack<T> d = load<T>(dnormed, i);
      const Pack<T> values = load<T>(x, i);
      const Pack<T> weight = load<T>(norm.weight, i);
      for (int j = 0; j < kNumel; ++j)
        dot += d.at(j) * (weight.at(j) + norm.weight_offset) * values.at(j);
    }
    const float mean = block_sum(dot) * rstd / static_cast<float>(norm.columns);
    void* dx = row_of<T>(norm.dx, row, norm.columns);
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
      const Pack<T> d = load<T>(dnormed, i);
      const Pack<T> values = load<T>(x, i);
      const Pack<T> weight = load<T>(norm.weight, i);
      Pack<T> dsum;
      if (norm.dsum != nullptr)
        dsum = load<T>(row_of<T>(norm.dsum, row, norm.columns), i);
      Pack<T> gradient;
      for (int j = 0; j < kNumel; ++j) {
        const float normed = values.at(j) * rstd;
        const float g = d.at(j) * (weight.at(j) + norm.weight_offset);
        dweight[i * kNumel + j] += d.at(j) * normed;
        const float of_norm = (g - normed * mean) * rstd;
        gradient.set(j, norm.dsum != nullptr ? of_norm + dsum.at(j) : of_norm);
      }
      store(dx, i, gradient);
    }
  }
  float* partial = norm.partial_dweight + blockIdx.x * norm.columns;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    for (int j = 0; j < kNumel; ++j)
      partial[i * kNumel + j] = dweight[i * kNumel + j];
  }
}

int64_t packs_of(Element element, int64_t columns) {
  return columns * (element == Element::kFloat ? 4 : 2) / kPackBytes;
}

}  // namespace

void launch_rms_norm(
    Element element,
    const RmsNorm& norm,
    CUstream_st* stream) {
  const int threads = threads_for(packs_of(element, norm.columns));
  const auto blocks = static_cast<unsigned>(norm.rows);
  for_element(element, [&](auto zero) {
    rms_norm<decltype(zero)><<<blocks, threads, 0, stream>>>(norm);
  });
  check_launch("rms_norm");
}

int64_t
rms_norm_backward_blocks(Element element, int64_t rows, int64_t columns) {
  int device = 0;
  int processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  // About a thousand threads on each.
  const int threads = threads_for(packs_of(element, columns));
  const int64_t most = static_cast<int64_t>(processors) * (1024 / threads);
  return rows < most ? rows : most;
}

void launch_rms_norm_backward(
    Element element,
    const RmsNormBackward& norm,
    CUstream_st* stream) {
  const int threads = threads_for(packs_of(element, norm.columns));
  const auto blocks = static_cast<unsigned>(norm.blocks);
  const auto bytes = static_cast<size_t>(norm.columns) * sizeof(float);
  for_element(element, [&](auto zero) {
    rms_norm_backward<decltype(zero)><<<blocks, threads, bytes, stream>>>(norm);
  });
  check_launch("rms_norm_backward");
}

}  // namespace brigade::ops::cuda
