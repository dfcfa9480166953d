#include "brigade/optim/make_optimizer.h"

#include <utility>

#include "brigade/optim/adamw.h"
#include "brigade/optim/muon.h"
#include "brigade/optim/schedule_free_adamw.h"
#include "brigade/optim/sgd.h"

namespace brigade {
namespace {

std::unique_ptr<Optimizer> make_kind(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups,
    std::span<const Param> params,
    const RanksOf& ranks_of) {
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      break;
    case OptimizerKind::kMuon:
      return std::make_unique<Muon>(
          std::move(groups),
          params,
          ranks_of,
          Muon::Options{options.muon, options.adamw});
    case OptimizerKind::kSgd:
      return std::make_unique<Sgd>(std::move(groups), options.sgd);
    case OptimizerKind::kScheduleFreeAdamW:
      return std::make_unique<ScheduleFreeAdamW>(
          std::move(groups),
          ScheduleFreeAdamW::Options{options.adamw, options.schedule_free});
  }
  return std::make_unique<AdamW>(std::move(groups), options.adamw);
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups,
    std::span<const Param> params,
    const RanksOf& ranks_of) {
  auto optimizer = make_kind(options, std::move(groups), params, ranks_of);
  if (options.moments != MomentDtype::kFloat32)
    optimizer->keep_moments_in(options.moments, options.seed);
  if (options.ema_decay > 0)
    optimizer->keep_average(options.ema_decay);
  return optimizer;
}

}  // namespace brigade
