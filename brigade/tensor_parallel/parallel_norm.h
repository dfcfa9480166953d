// RMSNorm (brigade/ops/rms_norm.h) over a last dim that tp ranks divide.
#pragma once

#include "brigade/ops/rms_norm.h"
#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

// x: [.., C / R], the rank's part of [.., C], and weight: [C / R] likewise;
// returns the rank's part of the norm. Where ranks hold the same part (kv
// heads, of which there are fewer than ranks), each part is held equally often.
// On one rank it is ops::rms_norm; on several it is composed of ATen's ops,
// whatever options.kernels are.
//
// Sent: an all-reduce of one float for each row of x, and of another in
// backward.
torch::Tensor parallel_rms_norm(
    const CommunicatorPtr& group,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const ops::RmsNormFormula& formula,
    const ops::OpOptions& options);

}  // namespace brigade
