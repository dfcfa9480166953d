#include "brigade/data/batch_sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data/permutation.h"

namespace brigade {

uint64_t count_windows(uint64_t num_tokens, int64_t seq_length) {
  BRIGADE_ASSERT(seq_length > 0, "seq_length {}", seq_length);
  if (num_tokens == 0)
    return 0;
  return (num_tokens - 1) / static_cast<uint64_t>(seq_length);
}

WindowSplit split_windows(
    uint64_t num_windows,
    double fraction,
    const std::string& dataset) {
  BRIGADE_ASSERT(fraction >= 0 && fraction < 1, "fraction {}", fraction);
  uint64_t held_out = 0;
  if (fraction > 0) {
    held_out = std::max<uint64_t>(
        1, static_cast<uint64_t>(static_cast<double>(num_windows) * fraction));
  }
  if (held_out >= num_windows) {
    throw DataError(fmt::format(
        "[batch_sampler] '{}' holds {} window(s), of which {} would be held "
        "out for evaluation: none is left to train on. Give more text, a "
        "shorter training.seq_length, or no training.eval_every",
        dataset,
        num_windows,
        held_out));
  }
  return {{0, num_windows - held_out}, {num_windows - held_out, num_windows}};
}

BatchSampler::BatchSampler(const BatchSamplerOptions& options)
    : options_(options) {
  BRIGADE_ASSERT(
      options.windows.begin < options.windows.end,
      "windows [{}, {})",
      options.windows.begin,
      options.windows.end);
}

uint64_t BatchSampler::window(uint64_t sample) const {
  const uint64_t position = sample % windows_per_epoch();
  if (!options_.shuffle)
    return options_.windows.begin + position;
  const uint64_t seed = mix_bits(options_.seed) ^ epoch(sample);
  const auto block_size = static_cast<uint64_t>(options_.shuffle_block);
  if (block_size > 0) {
    const uint64_t block = position / block_size;
    const uint64_t first = block * block_size;
    const Permutation order(
        std::min(block_size, windows_per_epoch() - first),
        mix_bits(mix_bits(seed) + block));
    return options_.windows.begin + first + order(position - first);
  }
  // Made for each sample: 128 mixes against a window's hundreds of tokens, and
  // nothing to keep in step between threads.
  const Permutation order(windows_per_epoch(), seed);
  return options_.windows.begin + order(position);
}

uint64_t sample_index(
    const BatchLayout& layout,
    uint64_t step,
    int64_t micro_batch,
    int64_t row) {
  BRIGADE_ASSERT(
      micro_batch >= 0 && micro_batch < layout.accumulation_steps && row >= 0 &&
          row < layout.micro_batch_size && layout.dp_rank >= 0 &&
          layout.dp_rank < layout.dp_size,
      "row {} of micro-batch {} on dp rank {}",
      row,
      micro_batch,
      layout.dp_rank);
  const int64_t within_step = (micro_batch * layout.dp_size + layout.dp_rank) *
                                  layout.micro_batch_size +
                              row;
  return step * layout.global_batch_size() + static_cast<uint64_t>(within_step);
}

}  // namespace brigade
