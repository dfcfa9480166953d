// The optimizer that options name.
#pragma once

#include <memory>
#include <vector>

#include "brigade/optim/muon.h"
#include "brigade/optim/optimizer.h"
#include "brigade/options/optimizer.h"
#include "brigade/param/param.h"

namespace brigade {

// What those need besides groups that step whole matrices.
struct MatrixRanks {
  const std::vector<Param>& params;  // that RunPart::param counts
  Muon::RanksOf ranks_of;
};

// Collective over the ranks of `matrices`.
std::unique_ptr<Optimizer> make_optimizer(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups,
    const MatrixRanks& matrices);

}  // namespace brigade
