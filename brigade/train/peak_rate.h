// The rate of a matrix product on this machine: what MFU is a part of.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>

#include "brigade/model_spec/llama_config.h"

namespace brigade {

// FLOP/s of one rank's threads on a square product of `dtype`, the best of
// several. Measured once a machine, thread count and dtype: kept in
// cache_dir/peak_rate.json (an empty path keeps nothing, an unreadable file is
// measured anew). All local ranks call it at once, so that each measures the
// share of the machine that it will have.
double peak_flops(torch::ScalarType dtype, const std::filesystem::path& cache);

// Floating-point operations of training on one token, forward and backward, as
// picotron counts them: 6 N + 12 layers * attention_width * seq, where
// attention_width is heads * head_dim: the hidden size of most models.
double flops_per_token(
    double parameters,
    int64_t num_layers,
    int64_t attention_width,
    int64_t seq_length);

// The same of the whole model, however it is cut over ranks.
double flops_per_token(const LlamaConfig& llama, int64_t seq_length);

}  // namespace brigade
