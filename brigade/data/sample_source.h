// What sample g of the run holds: tokens, which of them count in the loss, and
// where documents begin. A pure function of g, whatever the layout; safe to
// call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "brigade/data/batch_sampler.h"
#include "brigade/data/token_dataset.h"

namespace brigade {

// What a teacher says of tokens, one after another: the k that it finds
// likeliest in the place of each, with their log-probabilities.
struct TeacherTokens {
  int64_t k = 0;
  std::vector<int64_t> ids;      // [tokens, k]
  std::vector<float> log_probs;  // [tokens, k], nats
};

// Targets that follow one another in the dataset.
struct TargetRun {
  size_t place = 0;          // of the first one in the window
  uint64_t first_token = 0;  // of the dataset
  size_t numel = 0;
};

// One sample: a row of a batch.
struct Window {
  std::vector<int64_t> inputs;   // T tokens
  std::vector<int64_t> targets;  // T: the token after each input, or kNoTarget
  // The positions in (0, T) at which a document of the inputs begins,
  // ascending.
  std::vector<int64_t> document_starts;
  // What a reference model's log-probability of the targets is, where it is
  // asked for (data/pair_source.h).
  std::optional<double> reference = std::nullopt;
  // Where the targets are in a dataset, of sources that a TaughtSource reads.
  std::vector<TargetRun> runs = {};
  // What a teacher says of the targets, from a TaughtSource; else empty.
  TeacherTokens teacher = {};
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t seq_length() const = 0;  // T

  // Samples in one epoch; sample g + samples_per_epoch() is in the next. For a
  // mixture: those after which every part was seen at least once.
  virtual uint64_t samples_per_epoch() const = 0;

  // Sample g, which replaces the contents of `window`. Throws DataError for a
  // token id outside the vocabulary.
  virtual void read(uint64_t sample, Window& window) const = 0;
};

// The windows of one dataset, in a BatchSampler's order.
class WindowSource : public SampleSource {
 public:
  // Precondition: sampler's windows lie within the dataset.
  WindowSource(
      std::shared_ptr<const TokenDataset> dataset,
      int64_t seq_length,
      const BatchSamplerOptions& sampler)
      : dataset_(std::move(dataset)),
        seq_length_(seq_length),
        sampler_(sampler) {}

  int64_t seq_length() const override { return seq_length_; }
  uint64_t samples_per_epoch() const override {
    return sampler_.windows_per_epoch();
  }
  void read(uint64_t sample, Window& window) const override;

 private:
  uint64_t first_token(uint64_t sample) const {
    return sampler_.window(sample) * static_cast<uint64_t>(seq_length_);
  }

  std::shared_ptr<const TokenDataset> dataset_;
  int64_t seq_length_;
  BatchSampler sampler_;
};

}  // namespace brigade
