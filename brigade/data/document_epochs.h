// Epochs of documents: in each epoch the documents follow one another in an
// order of their own, and the windows are cut from that sequence. So a window
// does not hold the same neighbours in every epoch, as it does when only whole
// windows change places.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "brigade/data/permutation.h"
#include "brigade/data/sample_source.h"

namespace brigade {

// Needs 8 bytes per document, and 16 while an epoch changes.
class DocumentEpochSource : public SampleSource {
 public:
  // order.windows: the first ones of the dataset, of whose tokens epochs are
  // made (the rest may be held out); a document that reaches beyond is cut off.
  // Within the epoch windows are shuffled without blocks. Precondition: it is
  // not empty and lies within the dataset.
  DocumentEpochSource(
      std::shared_ptr<const TokenDataset> dataset,
      int64_t seq_length,
      const BatchSamplerOptions& order);

  int64_t seq_length() const override { return seq_length_; }
  uint64_t samples_per_epoch() const override {
    return sampler_.windows_per_epoch();
  }
  void read(uint64_t sample, Window& window) const override;

 private:
  // The i-th document of the epoch is order(i); it begins at begins[i] of the
  // epoch's tokens.
  struct Epoch {
    uint64_t number;
    Permutation order;
    std::vector<uint64_t> begins;
  };
  using EpochPointer = std::shared_ptr<const Epoch>;
  EpochPointer epoch_of(uint64_t sample) const;
  using Read = void (TokenDataset::*)(uint64_t, std::span<int64_t>) const;
  // Fills `out` with the epoch's tokens from `position` on, each piece by
  // `read`.
  void read_pieces(
      const Epoch& epoch,
      uint64_t position,
      std::span<int64_t> out,
      Read read) const;
  EpochPointer make_epoch(uint64_t number) const;
  uint64_t first_token(uint64_t sample) const {
    return sampler_.window(sample) * static_cast<uint64_t>(seq_length_);
  }
  uint64_t document_tokens(uint64_t document) const;

  std::shared_ptr<const TokenDataset> dataset_;
  int64_t seq_length_;
  uint64_t seed_;
  BatchSampler sampler_;
  uint64_t num_tokens_;  // in one epoch
  uint64_t num_documents_;

  mutable std::mutex mutex_;
  mutable EpochPointer current_;  // guarded by mutex_
};

}  // namespace brigade
