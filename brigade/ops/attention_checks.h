// The checks of attention's operands and options.
#pragma once

#include "brigade/ops/attention.h"

namespace brigade::ops {

// Throws UsageError naming what does not fit.
void check_attention(
    const AttentionOperands& operands,
    const AttentionOptions& options);

}  // namespace brigade::ops
