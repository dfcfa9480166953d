#include "brigade/data_parallel/error_feedback.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

void check_can_compress(const BucketView& bucket, const char* hook) {
  if (!bucket.main_grad.is_cpu())
    throw UsageError(fmt::format(
        "[data_parallel] {} compresses gradients on the CPU, but these are on "
        "{}; take bf16_hook()",
        hook,
        bucket.main_grad.device().str()));
  if (bucket.owned.numel() == bucket.main_grad.numel())
    return;
  throw UsageError(fmt::format(
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
