// Which window of the dataset is sample g of the run: a pure function, so that
// the order of the data depends on the seed and g alone, never on the layout,
// and resuming is only a matter of knowing g.
//
// Windows are picotron's: all documents concatenated, cut into chunks of
// seq_length + 1 tokens with stride seq_length (the last token of a window is
// the first input of the next one). An epoch visits every window once; sample g
// is in epoch g / num_windows.
#pragma once

#include <cstdint>
#include <string>

namespace brigade {

// Windows [begin, end) of a dataset.
struct WindowRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const WindowRange&) const = default;
};

// How many whole windows num_tokens tokens hold; 0 if fewer than
// seq_length + 1. Precondition: seq_length > 0.
uint64_t count_windows(uint64_t num_tokens, int64_t seq_length);

// The held-out split: the last windows of the dataset, never trained on.
struct WindowSplit {
  WindowRange training;
  WindowRange held_out;
};

// `fraction` in [0, 1) of the windows, at least one if fraction > 0, is held
// out. Throws DataError, naming `dataset`, when nothing would be left to train
// on.
WindowSplit split_windows(
    uint64_t num_windows,
    double fraction,
    const std::string& dataset);

struct BatchSamplerOptions {
  WindowRange windows;
  uint64_t seed = 0;
  bool shuffle = true;
  // Windows change places within blocks of so many, one block after the other,
  // so that the beginning of an epoch does not depend on its end; 0: within the
  // epoch.
  int64_t shuffle_block = 0;
};

class BatchSampler {
 public:
  // Precondition: the range is not empty.
  explicit BatchSampler(const BatchSamplerOptions& options);

  uint64_t windows_per_epoch() const { return options_.windows.size(); }
  uint64_t epoch(uint64_t sample) const { return sample / windows_per_epoch(); }
  // The window of sample g, within the range. Within an epoch every window
  // comes exactly once: in order, or through a permutation of its own that
  // depends on (seed, epoch). O(1); thread-safe.
  uint64_t window(uint64_t sample) const;

 private:
  BatchSamplerOptions options_;
};

// How one step's samples are dealt to ranks and micro-batches. Step s holds
// the samples [s G, (s + 1) G) whatever the layout; G is the global batch.
struct BatchLayout {
  int64_t micro_batch_size = 1;    // rows of one micro-batch of one rank
  int64_t accumulation_steps = 1;  // micro-batches of one rank in a step
  int64_t dp_size = 1;
  int64_t dp_rank = 0;

  uint64_t global_batch_size() const {
    return static_cast<uint64_t>(micro_batch_size) *
           static_cast<uint64_t>(accumulation_steps) *
           static_cast<uint64_t>(dp_size);
  }
};

// The global sample of row `row` of micro-batch `micro_batch` of step `step`
// on layout.dp_rank: s G + ((micro_batch * dp + dp_rank) * rows + row).
uint64_t sample_index(
    const BatchLayout& layout,
    uint64_t step,
    int64_t micro_batch,
    int64_t row);

}  // namespace brigade
