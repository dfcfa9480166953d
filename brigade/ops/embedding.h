// Rows of a table by token id.
#pragma once

#include "brigade/ops/op_options.h"

namespace brigade::ops {

// ids: int64 [..], each in [0, V); weight: [V, C]. Returns [.., C]. Throws
// DataError naming an id outside the vocabulary and its place, where ids are on
// the CPU; on other devices libtorch reports them in its own way.
Tensor embedding(
    const Tensor& ids,
    const Tensor& weight,
    const OpOptions& options = {});

}  // namespace brigade::ops
