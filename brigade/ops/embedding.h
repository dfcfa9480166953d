// Rows of a table by token id.
#pragma once

#include "brigade/ops/weight_grad.h"

namespace brigade::ops {

// ids: int64 [..], each in [0, V); weight: [V, C]. Returns [.., C]. Throws
// DataError naming an id outside the vocabulary and its place.
Tensor embedding(
    const Tensor& ids,
    const Tensor& weight,
    WeightGrad weight_grad = WeightGrad::kReturn);

}  // namespace brigade::ops
