#include "brigade/data_parallel/grad_sync_factory.h"

#include <utility>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/data_parallel/per_param_grad_sync.h"

namespace brigade {

std::unique_ptr<GradSync> make_grad_sync(
    GradSyncAlgorithm kind,
    std::vector<Param> params,
    CommunicatorPtr communicator,
    const GradSyncOptions& options) {
  if (kind == GradSyncAlgorithm::kPerParam) {
    return std::make_unique<PerParamGradSync>(
        std::move(params), std::move(communicator), options);
  }
  return std::make_unique<BucketedGradSync>(
      std::move(params), std::move(communicator), options);
}

}  // namespace brigade
