#include "brigade/data_parallel/grad_sync.h"

#include <fmt/format.h>

namespace brigade {

std::string describe(const GradSyncOptions& options) {
  // Closures of different places in a program are of different types.
  return fmt::format(
      "bucket_capacity_bytes: {}\nfirst_bucket_bytes: {}\n"
      "last_bucket_bytes: {}\norder: {}\nreduction: {}\n"
      "missing_gradient: {}\nhandover: {}\nreach: {}\nsharding: {}\n"
      "hook: function {:08x}\n",
      options.bucket_capacity_bytes,
      options.first_bucket_bytes,
      options.last_bucket_bytes,
      to_string(options.order),
      options.reduction == Reduction::kMean ? "mean" : "sum",
      options.missing_gradient == MissingGradient::kError ? "error" : "zero",
      options.handover == GradHandover::kParamDtype ? "param_dtype"
                                                    : "main_grad",
      options.reach == GraphReach::kOnce ? "once" : "as_in_first_step",
      to_string(options.sharding),
      static_cast<uint32_t>(options.hook.target_type().hash_code()));
}

const char* to_string(Sharding sharding) {
  switch (sharding) {
    case Sharding::kNone:
      return "none";
    case Sharding::kOptimizer:
      return "optimizer";
    case Sharding::kGradients:
      return "gradients";
    case Sharding::kParameters:
      return "parameters";
  }
  return "unknown";
}

GradSync::~GradSync() = default;

torch::Tensor GradSync::owned_main_grad(int param) const {
  const OwnedPart& part = owned_parts()[static_cast<size_t>(param)];
  return segments()[part.segment].owned_main_grad().narrow(
      0, part.offset, part.numel);
}

int GradSync::param_index(const std::string& name) const {
  for (size_t i = 0; i < params().size(); ++i) {
    if (params()[i].name == name)
      return static_cast<int>(i);
  }
  return -1;
}

}  // namespace brigade
