// Makes the optimizer that options name.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "brigade/optim/optimizer.h"
#include "brigade/options/optimizer.h"
#include "brigade/param/param.h"

namespace brigade {

// params: those that RunPart::param counts. Only an optimizer of whole matrices
// reads them, and calls `ranks_of` for each; then this is collective over these
// ranks.
std::unique_ptr<Optimizer> make_optimizer(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups,
    std::span<const Param> params,
    const RanksOf& ranks_of);

}  // namespace brigade
