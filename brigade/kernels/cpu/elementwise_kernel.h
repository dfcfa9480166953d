// The CPU kernels of SwiGLU and of the rotary embedding. T: float or uint16_t
// (bf16). Rows [begin, end) on the calling thread.
#pragma once

#include <cstdint>

namespace brigade::ops {

template <typename T>
struct SwigluForward {
  const T* gate;
  const T* up;
  T* out;  // dense rows
  int64_t gate_stride;
  int64_t up_stride;
  int64_t columns;
};

template <typename T>
struct SwigluBackward {
  const T* dout;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;
  int64_t dout_stride;
  int64_t gate_stride;
  int64_t up_stride;
  int64_t dgate_stride;
  int64_t dup_stride;
  int64_t columns;
};

// x: [B, T, H, D] with the given strides, rotated into y, or copied where there
// is no cos. A row is a token: row = b * tokens + t.
template <typename T>
struct Rotate {
  struct Strides {
    int64_t batch;
    int64_t token;
    int64_t head;
    int64_t of(int64_t b, int64_t t, int64_t h) const {
      return b * batch + t * token + h * head;
    }
  };
  const T* x;
  T* y;
  Strides x_strides;
  Strides y_strides;
  const float* cos;  // [tokens, D/2]
  const float* sin;
  float sign;  // -1: the inverse rotation
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
};

template <typename T>
void swiglu_forward(const SwigluForward<T>&, int64_t begin, int64_t end);
template <typename T>
void swiglu_backward(const SwigluBackward<T>&, int64_t begin, int64_t end);
template <typename T>
void rotate(const Rotate<T>&, int64_t begin, int64_t end);

}  // namespace brigade::ops
