// The CUDA kernels' launches, by addresses: nvcc compiles them without a header
// of libtorch. Each runs on `stream` and returns when it is queued; a launch
// that CUDA refuses is thrown as std::runtime_error with CUDA's words.
//
// T is float or bf16 (Element says which); sums are float32. Where rows are
// said to be packed, each begins at a multiple of 16 bytes and is a multiple of
// 16 bytes long.
#pragma once

#include <cstdint>

struct CUstream_st;  // CUDA's cudaStream_t is a pointer to it

namespace brigade::ops::cuda {

enum class Element { kFloat, kBFloat16 };
constexpr int64_t kPackBytes = 16;
// Floats of a block's memory in the backward of a norm, one per column: 48 KiB
// less what block_sum() has.
constexpr int64_t kMostNormColumns = 48 * 1024 / 4 - 32;

// As KernelSet::rms_norm(); all packed and contiguous. residual and sum are
// null without a residual.
struct RmsNorm {
  const void* x;
  const void* residual;
  const void* weight;
  void* normed;
  void* sum;
  float* rstd;  // [rows]
  int64_t rows, columns;
  float eps, weight_offset;
};
void launch_rms_norm(Element element, const RmsNorm& norm, CUstream_st* stream);

// As KernelSet::rms_norm_backward(). Each block has the sums of the weight's
// gradient over its rows in a row of `partial_dweight`.
struct RmsNormBackward {
  const void* dnormed;
  const void* dsum;  // null: none
  const void* x;
  const void* weight;
  const float* rstd;
  void* dx;
  float* partial_dweight;  // [blocks, columns]
  int64_t rows, columns, blocks;
  float weight_offset;
};
// How many blocks there are best to be.
int64_t
rms_norm_backward_blocks(Element element, int64_t rows, int64_t columns);
void launch_rms_norm_backward(
    Element element,
    const RmsNormBackward& norm,
    CUstream_st* stream);

// Packed rows, `stride` elements apart.
struct Rows {
  const void* at;
  int64_t stride;
};
struct WrittenRows {
  void* at;
  int64_t stride;
};

// out = silu(gate) up, rounded once.
struct Swiglu {
  Rows gate, up;
  WrittenRows out;
  int64_t rows, columns;
};
void launch_swiglu(Element element, const Swiglu& swiglu, CUstream_st* stream);
struct SwigluBackward {
  Rows dout, gate, up;
  WrittenRows dgate, dup;
  int64_t rows, columns;
};
void launch_swiglu_backward(
    Element element,
    const SwigluBackward& swiglu,
    CUstream_st* stream);

// As KernelSet's functions of these names; weights: float [tokens, per_token],
// null: ones.
struct RowsOfPairs {
  Rows x;
  const int64_t* pair_of_row;
  const float* weights;
  WrittenRows rows;
  int64_t numel, columns, per_token;  // numel: of rows
};
void launch_rows_of_pairs(
    Element element,
    const RowsOfPairs& call,
    CUstream_st* stream);
struct SumOfPairs {
  Rows rows;
  const int64_t* row_of_pair;
  const float* weights;
  WrittenRows sum;
  int64_t tokens, columns, per_token;
};
void launch_sum_of_pairs(
    Element element,
    const SumOfPairs& call,
    CUstream_st* stream);
struct ProductsOfPairs {
  Rows rows, x;
  const int64_t* row_of_pair;
  float* products;
  int64_t pairs, columns, per_token;
};
void launch_products_of_pairs(
    Element element,
    const ProductsOfPairs& call,
    CUstream_st* stream);

// [B, T, H, D] with packed halves of heads; strides in elements.
struct Heads {
  void* at;
  int64_t batch_stride, token_stride, head_stride;
};
struct Rotate {
  Heads y;
  Heads x;           // not written
  const float* cos;  // [T, D / 2]
  const float* sin;
  int64_t batches, tokens, heads, half;  // half: D / 2
  bool is_backward;
};
void launch_rotate(Element element, const Rotate& rotate, CUstream_st* stream);

// The largest logit of each row [rows, columns], the sum of exp(logit -
// largest), and the target's (0 where the target is negative).
struct HeadRows {
  const float* logits;
  const int64_t* targets;
  float* maxima;
  float* sums;
  float* target_logits;
  int64_t rows, columns;
};
void launch_head_rows(const HeadRows& head, CUstream_st* stream);

// gradient = factor (exp(logit - maximum) / sum - [column is the target]), of
// `element`; it may lie where float logits do.
struct HeadGradient {
  const float* logits;
  const int64_t* targets;
  const float* maxima;
  const float* sums;
  const float* factor;
  void* gradient;
  int64_t rows, columns;
};
void launch_head_gradient(
    Element element,
    const HeadGradient& head,
    CUstream_st* stream);

// As KernelSet::adamw_step(); bf16 weights have `low`, float32 ones null.
struct AdamW {
  float* main_grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* weight;
  int16_t* low;
  int64_t numel;
  float grad_scale, beta1, beta2, eps;
  float one_minus_beta1, one_minus_beta2;
  float keep;        // 1 - lr weight_decay
  float rate;        // lr / (1 - beta1^t)
  float root_scale;  // 1 / sqrt(1 - beta2^t)
  bool zero_main_grad;
};
void launch_adamw(const AdamW& step, CUstream_st* stream);

// The sums of squares of the blocks' elements, in double.
constexpr int64_t kSquareBlocks = 1024;
void launch_sum_of_squares(
    const float* values,
    int64_t numel,
    double* partial,  // [kSquareBlocks]
    CUstream_st* stream);

}  // namespace brigade::ops::cuda
