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

struct DocumentEpochOptions {
  int64_t seq_length = 0;
  // Tokens [0, num_tokens) of the dataset are used (the rest may be held out);
  // a document that reaches beyond is cut off.
  uint64_t num_tokens = 0;
  uint64_t seed = 0;
  bool shuffle_windows = true;  // within the epoch, as BatchSampler does
};

// Needs 8 bytes per document, and 16 while an epoch changes.
class DocumentEpochSource : public SampleSource {
 public:
  // Precondition: num_tokens holds a window and lies within the dataset.
  DocumentEpochSource(
      std::shared_ptr<const TokenDataset> dataset,
      const DocumentEpochOptions& options);

  int64_t seq_length() const override { return options_.seq_length; }
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
    return sampler_.window(sample) * static_cast<uint64_t>(options_.seq_length);
  }
  uint64_t document_tokens(uint64_t document) const;

  std::shared_ptr<const TokenDataset> dataset_;
  DocumentEpochOptions options_;
  BatchSampler sampler_;
  uint64_t num_documents_;

  mutable std::mutex mutex_;
  mutable EpochPointer current_;  // guarded by mutex_
};

}  // namespace brigade
