// What the kernels share: packs of 16 bytes, sums over a block, launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "brigade/kernels/cuda/launch.h"

namespace brigade::ops::cuda {

using BFloat16 = __nv_bfloat16;

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(BFloat16 x) {
  return __bfloat162float(x);
}
template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline BFloat16 from_float<BFloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// What a thread loads and stores at once.
template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr int kNumel = kPackBytes / sizeof(T);
  T values[kNumel];

  __device__ float at(int i) const { return to_float(values[i]); }
  __device__ void set(int i, float x) { values[i] = from_float<T>(x); }
};
template <typename T>
__device__ Pack<T> load(const void* row, int64_t pack) {
  return static_cast<const Pack<T>*>(row)[pack];
}
template <typename T>
__device__ void store(void* row, int64_t pack, const Pack<T>& values) {
  static_cast<Pack<T>*>(row)[pack] = values;
}
// The row of `index`, rows being `stride` elements apart.
template <typename T>
__device__ const void* row_of(const void* rows, int64_t index, int64_t stride) {
  return static_cast<const T*>(rows) + index * stride;
}
template <typename T>
__device__ void* row_of(void* rows, int64_t index, int64_t stride) {
  return static_cast<T*>(rows) + index * stride;
}

constexpr int kWarp = 32;
constexpr int kMostWarps = 32;

template <typename T>
__device__ T warp_sum(T x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    x += __shfl_xor_sync(0xffffffff, x, lanes);
  return x;
}

// The same on every thread. All threads of the block call it, whole warps.
template <typename T>
__device__ T block_sum(T x) {
  __shared__ T of_warps[kMostWarps];
  const int warps = blockDim.x / kWarp;
  x = warp_sum(x);
  if (warps == 1)
    return x;
  if (threadIdx.x % kWarp == 0)
    of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = 0;
  for (int warp = 0; warp < warps; ++warp)
    sum += of_warps[warp];
  __syncthreads();  // before another call writes
  return sum;
}

// Whole warps, as many as `packs` of a row keep busy, up to 256 threads.
inline int threads_for(int64_t packs) {
  constexpr int64_t kMost = 256;
  const int64_t wanted = (packs + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(wanted < kMost ? wanted : kMost);
}
template <typename T>
int threads_of(int64_t columns) {
  return threads_for(columns / Pack<T>::kNumel);
}

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(
        std::string("[cuda] ") + kernel + ": " + cudaGetErrorString(error));
}

// Calls launch(T()) with the type of the element.
template <typename Launch>
void for_element(Element element, const Launch& launch) {
  if (element == Element::kFloat)
    launch(float());
  else
    launch(BFloat16());
}

}  // namespace brigade::ops::cuda
