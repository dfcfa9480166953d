#include "brigade/data_parallel/error_feedback.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

void refuse_sharding(const BucketView& bucket, const char* hook) {
  if (bucket.owned.numel() == bucket.main_grad.numel())
    return;
  throw ConfigError(fmt::format(
      "[data_parallel] {} reduces whole buckets, but with sharded gradients a "
      "rank needs its own range alone; set Sharding::kNone, or "
      "reduce_scatter_hook(torch::kBFloat16) as the hook",
      hook));
}

int64_t offset_in_bucket(const BucketView& bucket, size_t param) {
  return bucket.grads[param].storage_offset() -
         bucket.main_grad.storage_offset();
}

}  // namespace brigade
