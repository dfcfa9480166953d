// The weight that an adapter (options/adapter.h) makes of a linear's, for who
// needs it as one matrix: to merge, to multiply with it, to know its rows.
#pragma once

#include "brigade/ops/linear.h"

namespace brigade::ops {

// W + scale B A; with magnitudes each row times m / its norm. Rounded as PEFT
// does: the product, the scaled product, the sum. Differentiable by the
// adapter's tensors; norms are constants (section 4.3 of DoRA's paper). weight:
// [out, in]. Returns the dtype of the adapter's tensors.
Tensor adapted_weight(const Tensor& weight, const LowRank& adapter);

}  // namespace brigade::ops
