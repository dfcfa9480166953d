// Matrix products by oneDNN: the only place that knows its interface. bf16
// operands use AMX or AVX512-BF16 where the processor has them, with float32
// accumulation inside. The number of threads is at::get_num_threads(). Without
// AVX512 blocks of ours multiply (blocked_product.h); what has fewer than 16
// rows or 32 columns, or adds to a bf16 result, is multiplied by libtorch's
// BLAS, on threads of its own (OPENBLAS_NUM_THREADS).
//
// Primitives are made once per shape and kept in a bounded, thread-safe cache
// of the process, like oneDNN's engine and the scratch memory of each thread
// (scratch.h): compiled code and working memory, on which no result depends. A
// cache per model would compile the same code for each of them.
#pragma once

#include <torch/types.h>

#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// c [M, N] = or += a [M, K] b [K, N]. a and b: of one dtype, float32 or bf16,
// each dense in one of its two dims. c: float32 or the operands' dtype, dense
// in its last dim. bias: [N] of c's dtype, dense, or undefined; only with
// kOverwrite. Runs on the calling thread's OpenMP team.
void product(
    const torch::Tensor& a,
    const torch::Tensor& b,
    const torch::Tensor& c,
    Destination destination = Destination::kOverwrite,
    const torch::Tensor& bias = {});

// Whether product() is oneDNN's: the processor has AVX512.
bool onednn_multiplies();

}  // namespace brigade::ops
