#include "brigade/data_parallel/grad_sync_options.h"

#include <fmt/format.h>

namespace brigade {

std::string describe(const GradSyncOptions& options) {
  // Closures of different places in a program are of different types.
  return fmt::format(
      "bucket_capacity_bytes: {}\nfirst_bucket_bytes: {}\n"
      "last_bucket_bytes: {}\nblock_numel: {}\norder: {}\nreduction: {}\n"
      "missing_gradient: {}\nhandover: {}\nreach: {}\nsharding: {}\n"
      "hook: function {:08x}\n",
      options.bucket_capacity_bytes,
      options.first_bucket_bytes,
      options.last_bucket_bytes,
      options.block_numel,
      to_string(options.order),
      options.reduction == Reduction::kMean ? "mean" : "sum",
      options.missing_gradient == MissingGradient::kError ? "error" : "zero",
      options.handover == GradHandover::kParamDtype ? "param_dtype"
                                                    : "main_grad",
      options.reach == GraphReach::kOnce ? "once" : "as_in_first_step",
      to_string(options.sharding),
      static_cast<uint32_t>(options.hook.target_type().hash_code()));
}

}  // namespace brigade
