// From the config's dataset group to what the trainer reads: opens the
// datasets, checks them against the model, splits off the held-out part and
// fixes the order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data/sample_source.h"
#include "brigade/data/token_range.h"

namespace brigade {

struct TrainingDataPart {
  std::string path;
  double weight = 1;  // relative to the other parts
};

struct TrainingDataOptions {
  std::vector<TrainingDataPart> parts;  // one, or several for a mixture
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  // the model's
  uint64_t seed = 0;
  bool shuffle = false;
  // Documents change places in each epoch, not only windows; see
  // document_epochs.h.
  bool document_epochs = false;
  double held_out_fraction = 0;  // of each part's windows; 0: none
  // What the config says made the datasets; empty: nothing.
  std::string tokenizer;
  TokenScanOptions scan;  // of token files without a DatasetInfo
};

struct TrainingData {
  std::shared_ptr<const SampleSource> training;
  // In order, without a shuffle; null when held_out_fraction is 0.
  std::shared_ptr<const SampleSource> held_out;
  uint64_t num_tokens = 0;  // of all parts
  // Of those what counts in the loss, where a part has a mask.
  std::optional<uint64_t> counting_tokens;
  uint64_t training_windows = 0;  // of all parts
  uint64_t held_out_windows = 0;
};

// Throws DataError for files that are damaged, empty or too short for one
// window and for token ids that the model does not have; ConfigError for a
// vocabulary larger than the model's, a tokenizer that did not make a dataset,
// and weights that cannot be honoured.
TrainingData open_training_data(const TrainingDataOptions& options);

}  // namespace brigade
