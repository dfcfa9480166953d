// silu(gate) up and its gradients, a block of threads per row:
//   dup = dout gate s,  dgate = dout up s (1 + gate (1 - s)),
//   s = sigmoid(gate)
#include "brigade/kernels/cuda/common.cuh"

namespace brigade::ops::cuda {
namespace {

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <typename T>
__global__ void swiglu(Swiglu s) {
  const int64_t row = blockIdx.x;
  const void* gate_row = row_of<T>(s.gate.at, row, s.gate.stride);
  const void* up_row = row_of<T>(s.up.at, row, s.up.stride);
  void* out_row = row_of<T>(s.out.at, row, s.out.stride);
  for (int64_t i = threadIdx.x; i < s.columns / Pack<T>::kNumel;
       i += blockDim.x) {
    const Pack<T> gate = load<T>(gate_row, i);
    const Pack<T> up = load<T>(up_row, i);
    Pack<T> out;
    for (int j = 0; j < Pack<T>::kNumel; ++j)
      out.set(j, gate.at(j) * sigmoid(gate.at(j)) * up.at(j));
    store(out_row, i, out);
  }
}

template <typename T>
__global__ void swiglu_backward(SwigluBackward s) {
  const int64_t row = blockIdx.x;
  const void* dout_row = row_of<T>(s.dout.at, row, s.dout.stride);
  const void* gate_row = row_of<T>(s.gate.at, row, s.gate.stride);
  const void* up_row = row_of<T>(s.up.at, row, s.up.stride);
  void* dgate_row = row_of<T>(s.dgate.at, row, s.dgate.stride);
  void* dup_row = row_of<T>(s.dup.at, row, s.dup.stride);
  for (int64_t i = threadIdx.x; i < s.columns / Pack<T>::kNumel;
       i += blockDim.x) {
    const Pack<T> dout = load<T>(dout_row, i);
    const Pack<T> gate = load<T>(gate_row, i);
    const Pack<T> up = load<T>(up_row, i);
    Pack<T> dgate;
    Pack<T> dup;
    for (int j = 0; j < Pack<T>::kNumel; ++j) {
      const float g = gate.at(j);
      const float share = sigmoid(g);
      dgate.set(j, dout.at(j) * up.at(j) * share * (1 + g * (1 - share)));
      dup.set(j, dout.at(j) * g * share);
    }
    store(dgate_row, i, dgate);
    store(dup_row, i, dup);
  }
}

}  // namespace

void launch_swiglu(Element element, const Swiglu& s, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(s.rows);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    swiglu<T><<<blocks, threads_of<T>(s.columns), 0, stream>>>(s);
  });
  check_launch("swiglu");
}

void launch_swiglu_backward(
    Element element,
    const SwigluBackward& s,
    CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(s.rows);
  for_element(element, [&](auto zero) {
    using T = decltype(zero);
    swiglu_backward<T><<<blocks, threads_of<T>(s.columns), 0, stream>>>(s);
  });
  check_launch("swiglu_backward");
}

}  // namespace brigade::ops::cuda
