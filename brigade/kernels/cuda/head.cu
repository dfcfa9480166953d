// The softmax of the head's logits and its gradient, a block of threads per
// row, which is read once for each.
#include <cfloat>

#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

constexpr int kThreads = 512;

// The largest of some numbers, and the sum of exp(number - largest).
struct Softmax {
  // Not -infinity: numbers that are must not make NaN of it.
  float largest = -FLT_MAX;
  float sum = 0;

  __device__ void add(float x) {
    if (x > largest) {
      sum = sum * __expf(largest - x) + 1;
      largest = x;
    } else {
      sum += __expf(x - largest);
    }
  }
  __device__ void add(const Softmax& other) {
    const float both = fmaxf(largest, other.largest);
    sum =
        sum * __expf(largest - both) + other.sum * __expf(other.largest - both);
    largest = both;
  }
};

__global__ void head_rows(HeadRows head) {
  const int64_t row = blockIdx.x;
  const float* logits = head.logits + row * head.columns;
  Softmax softmax;
  for (int64_t i = threadIdx.x; i < head.columns; i += blockDim.x)
    softmax.add(logits[i]);
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    Softmax other;
    other.largest = __shfl_xor_sync(0xffffffff, softmax.largest, lanes);
    other.sum = __shfl_xor_sync(0xffffffff, softmax.sum, lanes);
    softmax.add(other);
  }
  __shared__ float largest[kThreads / kWarp];
  __shared__ float sums[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) {
    largest[threadIdx.x / kWarp] = softmax.largest;
    sums[threadIdx.x / kWarp] = softmax.sum;
  }
  __syncthreads();
  if (threadIdx.x > 0)
    return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) {
    Softmax other;
    other.largest = largest[warp];
    other.sum = sums[warp];
    softmax.add(other);
  }
  head.maxima[row] = softmax.largest;
  head.sums[row] = softmax.sum;
  const int64_t target = head.targets[row];
  head.target_logits[row] = target < 0 ? 0 : logits[target];
}

template <typename T>
__global__ void head_gradient(HeadGradient head) {
  const int64_t row = blockIdx.x;
  const float* logits = head.logits + row * head.columns;
  T* gradient = static_cast<T*>(head.gradient) + row * head.columns;
  const float factor = head.factor[row];
  const float scale = factor / head.sums[row];
  const float largest = head.maxima[row];
  const int64_t target = head.targets[row];
  for (int64_t i = threadIdx.x; i < head.columns; i += blockDim.x) {
    const float value = __expf(logits[i] - largest) * scale;
    gradient[i] = from_float<T>(i == target ? value - factor : value);
  }
}

}  // namespace

void launch_head_rows(const HeadRows& head, CUstream_st* stream) {
  head_rows<<<static_cast<unsigned>(head.rows), kThreads, 0, stream>>>(head);
  check_launch("head_rows");
}

void launch_head_gradient(
    Element element,
    const HeadGradient& head,
    CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(head.rows);
  for_element(element, [&](auto zero) {
    head_gradient<decltype(zero)><<<blocks, kThreads, 0, stream>>>(head);
  });
  check_launch("head_gradient");
}

}  // namespace brigade::ops::cuda
