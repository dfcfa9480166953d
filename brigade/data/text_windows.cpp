#include "brigade/data/text_windows.h"

#include <algorithm>

namespace brigade {

uint64_t TextWindowSource::samples_per_epoch() const {
  return count_windows(
      tokens_->wait_for_all().dataset->num_tokens(), options_.seq_length);
}

void TextWindowSource::read(uint64_t sample, Window& window) const {
  const auto block =
      static_cast<uint64_t>(std::max<int64_t>(1, options_.shuffle_block));
  // Where the sample's block ends, in windows, if the first epoch is so long.
  const uint64_t block_end = (sample / block + 1) * block;
  const TextTokens::Snapshot snapshot = tokens_->wait_for(
      block_end * static_cast<uint64_t>(options_.seq_length) + 1);
  uint64_t windows = block_end;
  if (snapshot.is_whole) {
    snapshot.dataset->require_window(options_.seq_length);
    windows =
        count_windows(snapshot.dataset->num_tokens(), options_.seq_length);
  }
  // Before the text ends, the windows of whole blocks are where they will be.
  const WindowSource source(
      snapshot.dataset,
      options_.seq_length,
      {.windows = {0, windows},
       .seed = options_.seed,
       .shuffle = options_.shuffle_block > 0,
       .shuffle_block = options_.shuffle_block});
  source.read(sample, window);
}

}  // namespace brigade
