// Rotary position embedding (ops/rotary.h), a block of threads per token.
#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

template <typename T>
__device__ T* token_of(const Heads& heads, int64_t batch, int64_t token) {
  return static_cast<T*>(heads.at) + batch * heads.batch_stride +
         token * heads.token_stride;
}

template <typename T>
__global__ void rotate(Rotate r) {
  constexpr int kNumel = Pack<T>::kNumel;
  const int64_t token = blockIdx.x % r.tokens;
  const int64_t batch = blockIdx.x / r.tokens;
  const T* x_token = token_of<T>(r.x, batch, token);
  T* y_token = token_of<T>(r.y, batch, token);
  const int packs = static_cast<int>(r.half / kNumel);  // of half a head
  const float* cos_row = r.cos + token * r.half;
  const float* sin_row = r.sin + token * r.half;
  for (int i = static_cast<int>(threadIdx.x); i < r.heads * packs;
       i += static_cast<int>(blockDim.x)) {
    const int head = i / packs;
    const int pack = i % packs;
    const T* x = x_token + head * r.x.head_stride;
    T* y = y_token + head * r.y.head_stride;
    const Pack<T> first = load<T>(x, pack);
    const Pack<T> second = load<T>(x + r.half, pack);
    Pack<T> y_first;
    Pack<T> y_second;
    for (int j = 0; j < kNumel; ++j) {
      const float cos = cos_row[pack * kNumel + j];
      const float sin = r.is_backward ? -sin_row[pack * kNumel + j]
                                      : sin_row[pack * kNumel + j];
      y_first.set(j, first.at(j) * cos - second.at(j) * sin);
      y_second.set(j, second.at(j) * cos + first.at(j) * sin);
    }
    store(y, pack, y_first);
    store(y + r.half, pack, y_second);
  }
}

}  // namespace

void launch_rotate(Element element, const Rotate& r, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(r.batches * r.tokens);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    rotate<T><<<blocks, threads_of<T>(r.heads * r.half), 0, stream>>>(r);
  });
  check_launch("rotate");
}

}  // namespace brigade::ops::cuda
