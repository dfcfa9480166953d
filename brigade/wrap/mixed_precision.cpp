#include "brigade/wrap/mixed_precision.h"

#include <fmt/format.h>

#include "brigade/base/error.h"
#include "brigade/options/describe.h"

namespace brigade {

void check(const MixedPrecision& precision) {
  if (!is_16_bit(precision.param_dtype)) {
    throw UsageError(fmt::format(
        "[data_parallel] mixed precision with param_dtype = {}: compute copies "
        "are kBFloat16 or kHalf; leave mixed_precision unset to compute in the "
        "parameters' own dtype",
        c10::toString(precision.param_dtype)));
  }
  if (precision.reduce_dtype != torch::kFloat &&
      !is_16_bit(precision.reduce_dtype)) {
    throw UsageError(fmt::format(
        "[data_parallel] mixed precision with reduce_dtype = {}: gradients are "
        "sent as kFloat, kBFloat16 or kHalf",
        c10::toString(precision.reduce_dtype)));
  }
  for (const auto& dtype : {precision.buffer_dtype, precision.output_dtype}) {
    if (dtype && !at::isFloatingType(*dtype)) {
      throw UsageError(fmt::format(
          "[data_parallel] mixed precision with buffer_dtype or output_dtype = "
          "{}: give a floating-point dtype",
          c10::toString(*dtype)));
    }
  }
}

std::string describe(const MixedPrecision& precision) {
  using M = MixedPrecision;
  return describe_members(
      precision,
      OptionMember{"param_dtype", &M::param_dtype},
      OptionMember{"reduce_dtype", &M::reduce_dtype},
      OptionMember{"buffer_dtype", &M::buffer_dtype},
      OptionMember{"output_dtype", &M::output_dtype},
      OptionMember{"cast_forward_inputs", &M::cast_forward_inputs},
      OptionMember{"keep", &M::keep});
}

GradSyncOptions with_reduce_dtype(
    GradSyncOptions options,
    const MixedPrecision& precision) {
  // Copies are made of whole weights, which every forward needs.
  if (options.sharding != Sharding::kNone &&
      options.sharding != Sharding::kOptimizer &&
      options.sharding != Sharding::kGradients) {
    throw UsageError(fmt::format(
        "[data_parallel] mixed precision with sharding = {}: compute copies "
        "are made of whole weights; convert the module to 16 bits before "
        "wrapping it, and step it with make_adamw(), which keeps float32 "
        "masters",
        to_string(options.sharding)));
  }
  if (precision.reduce_dtype == torch::kFloat)
    return options;
  if (options.hook) {
    throw UsageError(fmt::format(
        "[data_parallel] mixed precision with reduce_dtype = {} and a hook: "
        "the hook decides what is sent; leave reduce_dtype at kFloat or the "
        "hook empty",
        c10::toString(precision.reduce_dtype)));
  }
  options.hook = sum_hook(options.sharding, precision.reduce_dtype);
  return options;
}

}  // namespace brigade
