// The windows of text that is tokenized while they are read: those of the
// dataset that `brigade prepare` would make of it, in the same order, without
// waiting for the end of the text.
#pragma once

#include <memory>

#include "brigade/data/batch_sampler.h"
#include "brigade/data/sample_source.h"
#include "brigade/data/text_tokens.h"

namespace brigade {

struct TextWindowsOptions {
  int64_t seq_length = 0;
  uint64_t seed = 0;
  // Blocks in which windows change places (BatchSamplerOptions); 0: they stay
  // in order. Sample g waits for the tokens of its block, or for all when the
  // first epoch ends before.
  int64_t shuffle_block = 0;
};

class TextWindowSource : public SampleSource {
 public:
  TextWindowSource(
      std::shared_ptr<TextTokens> tokens,
      const TextWindowsOptions& options)
      : tokens_(std::move(tokens)), options_(options) {}

  int64_t seq_length() const override { return options_.seq_length; }
  // Waits for all tokens.
  uint64_t samples_per_epoch() const override;
  void read(uint64_t sample, Window& window) const override;

 private:
  std::shared_ptr<TextTokens> tokens_;
  TextWindowsOptions options_;
};

}  // namespace brigade
