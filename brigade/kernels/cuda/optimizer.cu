// A step of AdamW in one pass over memory, with the arithmetic of ops/adamw.h
// and the masters of ops/split_master.h; and the squares of a gradient's norm.
#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 32;

__device__ float joined(uint16_t upper, int16_t low) {
  return __int_as_float(static_cast<int>(
      (static_cast<uint32_t>(upper) << 16) +
      static_cast<uint32_t>(static_cast<int32_t>(low))));
}

// kNumel elements at a time: 4 where all begin at multiples of 16 bytes.
template <typename T, int kNumel>
struct alignas(sizeof(T) * kNumel) Some {
  T values[kNumel];
};

template <bool kIsSplit, int kNumel>
__global__ void adamw(AdamW step) {
  using Floats = Some<float, kNumel>;
  using Uppers = Some<uint16_t, kNumel>;
  using Lows = Some<int16_t, kNumel>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t groups = step.numel / kNumel;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < groups;
       i += stride) {
    const Floats gradient = reinterpret_cast<const Floats*>(step.main_grad)[i];
    Floats exp_avg = reinterpret_cast<const Floats*>(step.exp_avg)[i];
    Floats exp_avg_sq = reinterpret_cast<const Floats*>(step.exp_avg_sq)[i];
    Floats master;
    Uppers uppers;
    Lows lows;
    if constexpr (kIsSplit) {
      uppers = static_cast<const Uppers*>(step.weight)[i];
      lows = reinterpret_cast<const Lows*>(step.low)[i];
    } else {
      master = static_cast<const Floats*>(step.weight)[i];
    }
    for (int j = 0; j < kNumel; ++j) {
      if constexpr (kIsSplit)
        master.values[j] = joined(uppers.values[j], lows.values[j]);
      const float g = gradient.values[j] * step.grad_scale;
      const float m = step.beta1 * exp_avg.values[j] + step.one_minus_beta1 * g;
      const float v =
          step.beta2 * exp_avg_sq.values[j] + step.one_minus_beta2 * g * g;
      const float denominator = sqrtf(v) * step.root_scale + step.eps;
      const float w =
          master.values[j] * step.keep - step.rate * m / denominator;
      exp_avg.values[j] = m;
      exp_avg_sq.values[j] = v;
      master.values[j] = w;
      if constexpr (kIsSplit) {
        const uint32_t bits = w == w ? __float_as_uint(w) : 0x7fc00000u;
        uppers.values[j] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
        lows.values[j] = static_cast<int16_t>(bits & 0xffffu);
      }
    }
    reinterpret_cast<Floats*>(step.exp_avg)[i] = exp_avg;
    reinterpret_cast<Floats*>(step.exp_avg_sq)[i] = exp_avg_sq;
    if constexpr (kIsSplit) {
      static_cast<Uppers*>(step.weight)[i] = uppers;
      reinterpret_cast<Lows*>(step.low)[i] = lows;
    } else {
      static_cast<Floats*>(step.weight)[i] = master;
    }
    if (step.zero_main_grad)
      reinterpret_cast<Floats*>(step.main_grad)[i] = Floats{};
  }
}

template <int kNumel>
void launch(const AdamW& step, CUstream_st* stream) {
  int64_t blocks = (step.numel / kNumel + kThreads - 1) / kThreads;
  blocks = blocks < kMostBlocks ? blocks : kMostBlocks;
  const auto grid = static_cast<unsigned>(blocks);
  if (step.low != nullptr)
    adamw<true, kNumel><<<grid, kThreads, 0, stream>>>(step);
  else
    adamw<false, kNumel><<<grid, kThreads, 0, stream>>>(step);
  check_launch("adamw");
}

bool begins_at(const void* address, uintptr_t multiple) {
  return reinterpret_cast<uintptr_t>(address) % multiple == 0;
}

__global__ void
sum_of_squares(const float* values, int64_t numel, double* partial) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double sum = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < numel;
       i += stride) {
    const double x = values[i];
    sum += x * x;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0)
    partial[blockIdx.x] = sum;
}

}  // namespace

void launch_adamw(const AdamW& step, CUstream_st* stream) {
  constexpr int kNumel = 4;
  constexpr uintptr_t kFloats = kNumel * sizeof(float);
  const bool is_split = step.low != nullptr;
  if (step.numel % kNumel == 0 && begins_at(step.main_grad, kFloats) &&
      begins_at(step.exp_avg, kFloats) && begins_at(step.exp_avg_sq, kFloats) &&
      begins_at(step.weight, is_split ? kFloats / 2 : kFloats) &&
      begins_at(step.low, kFloats / 2))
    launch<kNumel>(step, stream);
  else
    launch<1>(step, stream);
}

void launch_sum_of_squares(
    const float* values,
    int64_t numel,
    double* partial,
    CUstream_st* stream) {
  sum_of_squares<<<static_cast<unsigned>(kSquareBlocks), kThreads, 0, stream>>>(
      values, numel, partial);
  check_launch("sum_of_squares");
}

}  // namespace brigade::ops::cuda
