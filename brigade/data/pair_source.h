// Pairs of a chosen and a rejected answer as samples, two for each pair: sample
// 2 p is the chosen conversation of the epoch's pair p, sample 2 p + 1 the
// rejected one. Each begins a sequence and is padded to its length with tokens
// that do not count.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "brigade/data/sample_source.h"

namespace brigade {

// Documents 2 p and 2 p + 1 of a dataset are the answers of pair p.
struct PairDataset {
  std::shared_ptr<const TokenDataset> dataset;
  // The reference model's log-probability of each document's counting tokens;
  // empty: none is needed.
  std::vector<double> reference;

  uint64_t num_pairs() const { return dataset->documents().size() / 2; }
  // Throws DataError, naming the pair, where an answer is longer than a
  // sequence or none of its tokens counts.
  void require_fits(int64_t seq_length) const;
};

class PairSource : public SampleSource {
 public:
  // order.windows: which pairs, all of which fit.
  PairSource(
      std::shared_ptr<const PairDataset> pairs,
      int64_t seq_length,
      const BatchSamplerOptions& order)
      : pairs_(std::move(pairs)), seq_length_(seq_length), sampler_(order) {}

  int64_t seq_length() const override { return seq_length_; }
  uint64_t samples_per_epoch() const override {
    return 2 * sampler_.windows_per_epoch();
  }
  void read(uint64_t sample, Window& window) const override;

 private:
  std::shared_ptr<const PairDataset> pairs_;
  int64_t seq_length_;
  BatchSampler sampler_;
};

}  // namespace brigade
