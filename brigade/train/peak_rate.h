// The rate of matrix products on this machine: MFU is a fraction of it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>

#include "brigade/config/train_config.h"
#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// Where measured rates are kept: directory/peak_rate.json, by processor or GPU,
// number of threads, ranks on the machine and dtype. Where a file is unreadable
// the rate is measured again; one that cannot be written is no error.
struct PeakRateCache {
  std::filesystem::path directory;  // empty: nothing is kept
  enum class Access { kRead, kReadAndWrite };
  Access access = Access::kReadAndWrite;
};

// FLOP/s of this rank's threads, or of its GPU, on a square product of that
// dtype and device: the best of many over a quarter of a second. All ranks of
// the machine call it at once, so that each measures the share of the machine
// that it has in training.
double peak_flops(
    const torch::TensorOptions& options,
    int local_ranks,
    const PeakRateCache& cache);

// Floating-point operations of training on one token, forward and backward, as
// picotron counts them: 6 N + 12 layers * attention_width * seq, where
// attention_width is heads * head_dim: the hidden size of most models.
double flops_per_token(
    double parameters,
    int64_t num_layers,
    int64_t attention_width,
    int64_t seq_length);

// The same of the whole model, however it is cut over ranks.
double flops_per_token(const DecoderConfig& decoder, int64_t seq_length);
// The same of a run. An adapter's leaves out the gradients of the frozen
// weights, 2 N; what the adapter itself computes is not counted.
double flops_per_token(const TrainConfig& config);
// What of it is one expert's: of a choice that is dropped it is not computed.
double flops_per_choice(const TrainConfig& config);

}  // namespace brigade
