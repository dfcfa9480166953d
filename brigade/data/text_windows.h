// The windows of text that is tokenized while they are read: those of the
// dataset that `brigade prepare` would make of it, in the same order, without
// waiting for the end of the text.
#pragma once

#include <memory>

#include "brigade/base/check.h"
#include "brigade/data/batch_sampler.h"
#include "brigade/data/sample_source.h"
#include "brigade/data/text_tokens.h"

namespace brigade {

class TextWindowSource : public SampleSource {
 public:
  // order.windows are those of the text, whatever is given. Sample g waits for
  // the tokens of its block, or for all when the first epoch ends before.
  // Precondition: windows that are shuffled are so in blocks.
  TextWindowSource(
      std::shared_ptr<TextTokens> tokens,
      int64_t seq_length,
      const BatchSamplerOptions& order)
      : tokens_(std::move(tokens)), seq_length_(seq_length), order_(order) {
    BRIGADE_ASSERT(!order.shuffle || order.shuffle_block > 0);
  }

  int64_t seq_length() const override { return seq_length_; }
  // Waits for all tokens.
  uint64_t samples_per_epoch() const override;
  void read(uint64_t sample, Window& window) const override;

 private:
  std::shared_ptr<TextTokens> tokens_;
  int64_t seq_length_;
  BatchSamplerOptions order_;
};

}  // namespace brigade
