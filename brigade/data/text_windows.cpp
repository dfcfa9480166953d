#include "brigade/data/text_windows.h"

namespace brigade {

uint64_t TextWindowSource::samples_per_epoch() const {
  return count_windows(
      tokens_->wait_for_all().dataset->num_tokens(), seq_length_);
}

void TextWindowSource::read(uint64_t sample, Window& window) const {
  BatchSamplerOptions order = order_;
  const auto block =
      order.shuffle ? static_cast<uint64_t>(order.shuffle_block) : 1;
  // Where the sample's block ends, in windows, if the first epoch is so long.
  const uint64_t block_end = (sample / block + 1) * block;
  const TextTokens::Snapshot snapshot =
      tokens_->wait_for(block_end * static_cast<uint64_t>(seq_length_) + 1);
  order.windows = {0, block_end};
  if (snapshot.is_whole) {
    snapshot.dataset->require_window(seq_length_);
    order.windows.end =
        count_windows(snapshot.dataset->num_tokens(), seq_length_);
  }
  // Before the text ends, the windows of whole blocks are where they will be.
  WindowSource(snapshot.dataset, seq_length_, order).read(sample, window);
}

}  // namespace brigade
