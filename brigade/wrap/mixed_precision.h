// Mixed precision for any module: forward and backward compute with 16-bit
// copies of the float32 parameters, which the optimizer keeps stepping.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

// The counterpart of MixedPrecision of PyTorch's DDP and FSDP. There is no loss
// scaling (GradScaler). Gradients accumulate in float32, whatever dtype they
// are computed or sent in.
struct MixedPrecision {
  // The dtype of parameters in forward and backward: kBFloat16 or kHalf.
  // Parameters that are not float32 stay as they are.
  torch::ScalarType param_dtype = torch::kBFloat16;
  // The dtype of gradients between ranks: kFloat, kBFloat16 (bf16_hook()) or
  // kHalf (fp16_hook()); with sharding by reduce_scatter_hook(). All but kFloat
  // need an empty GradSyncOptions::hook, and buckets.
  torch::ScalarType reduce_dtype = torch::kFloat;
  // Floating-point buffers are converted to this dtype once, when wrapping.
  // Unset: they stay as they are.
  std::optional<torch::ScalarType> buffer_dtype;
  // Floating-point tensors among the arguments of forward() are cast to
  // param_dtype.
  bool cast_forward_inputs = true;
  // The dtype of the floating-point tensors that forward() returns. Unset: as
  // computed.
  std::optional<torch::ScalarType> output_dtype;
  // Full names of modules, parameters and buffers that keep their dtype; those
  // of batch normalisation always do, as with FSDP. Nothing inside forward() is
  // cast for them, which FSDP does: a kept module that libtorch does not let
  // compute with mixed dtypes (a Linear) casts its input and output itself.
  std::vector<std::string> keep;

  std::optional<torch::ScalarType> input_dtype() const {
    return cast_forward_inputs ? std::optional(param_dtype) : std::nullopt;
  }
};

// Throws UsageError naming a dtype that is not allowed.
void check(const MixedPrecision& precision);

// One line per member.
std::string describe(const MixedPrecision& precision);

// `options` with the hook that sends gradients in reduce_dtype; unchanged for
// kFloat. Throws UsageError if another dtype meets a hook, and with
// Sharding::kParameters.
GradSyncOptions with_reduce_dtype(
    GradSyncOptions options,
    const MixedPrecision& precision);

}  // namespace brigade
