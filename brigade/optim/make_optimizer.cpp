#include "brigade/optim/make_optimizer.h"

#include <utility>

#include "brigade/optim/adamw.h"

namespace brigade {

std::unique_ptr<Optimizer> make_optimizer(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups) {
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      break;
  }
  return std::make_unique<AdamW>(std::move(groups), options.adamw);
}

}  // namespace brigade
