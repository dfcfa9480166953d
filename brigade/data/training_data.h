// From the config's dataset group to what the trainer reads: opens the
// datasets, checks them against the model, splits off the held-out part and
// fixes the order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/data/mixture_schedule.h"
#include "brigade/data/packed_documents.h"
#include "brigade/data/sample_source.h"
#include "brigade/data/text_tokens.h"
#include "brigade/data/token_range.h"
#include "brigade/options/dataset.h"

namespace brigade {

struct TrainingDataPart {
  std::string path;
  double weight = 1;  // relative to the other parts
  // Weights by samples of the run, in place of `weight`; empty: it never
  // changes.
  WeightTable weights = {};
  // Text that is tokenized here, in place of a dataset; `path` then names it.
  std::optional<TextInput> text = {};
};

struct TrainingDataOptions {
  std::vector<TrainingDataPart> parts;  // one, or several for a mixture
  int64_t seq_length = 0;
  int64_t vocab_size = 0;  // the model's
  uint64_t seed = 0;
  DatasetOptions dataset;
  // What a sample is: a window, or of one dataset of pairs each answer, with
  // what a reference model says of it or without.
  enum class Samples { kWindows, kPairs, kPairsWithReference };
  Samples samples = Samples::kWindows;
  // The share of each part's windows, or documents with packing; 0: none.
  double held_out_fraction = 0;
  TokenScanOptions scan;  // of token files without a DatasetInfo
  // While text is tokenized that has to be whole before training begins.
  std::function<void(const TextTokensProgress&)> on_tokenize;
  // kCheck: text is found and its tokenizer read, no more; there are no sources
  // then.
  enum class Text { kTokenize, kCheck };
  Text text = Text::kTokenize;
};

// One part of the training data.
struct TrainingPart {
  std::string path;
  uint64_t training_windows = 0;  // an epoch of it
  // Its held-out windows alone, in order; null: none.
  std::shared_ptr<const SampleSource> held_out;
};

// What training reads. While text is tokenized during training, the numbers of
// tokens and windows are 0.
struct TrainingData {
  std::shared_ptr<const SampleSource> training;
  // The held-out windows in order, without a shuffle; of several parts in the
  // proportions of their largest weights. Null when held_out_fraction is 0.
  std::shared_ptr<const SampleSource> held_out;
  uint64_t num_tokens = 0;  // of all parts
  // Those tokens that count in the loss, where a part has a mask.
  std::optional<uint64_t> counting_tokens;
  uint64_t training_windows = 0;  // of all parts
  uint64_t held_out_windows = 0;
  std::vector<TrainingPart> parts;
  // How many samples of each part are among the first ones of the run; null of
  // text alone that is not tokenized yet, which has no `parts` either.
  std::shared_ptr<const MixtureSchedule> schedule;
  uint64_t text_bytes = 0;  // of text, on disk; 0: all parts are datasets
  // With packing, what became of the documents to train on; of all parts.
  std::optional<PackingCounts> packing;
};

// With pairs, windows are their answers, two for each pair; the held-out pairs
// are the last ones.
//
// A single text without held-out part and document epochs, in order or shuffled
// in blocks, is read while it is tokenized; every other text is tokenized
// first.
//
// Throws DataError for files that are damaged, empty or too short for one
// window and for token ids that the model does not have; ConfigError for a
// vocabulary larger than the model's, a tokenizer that did not make a dataset,
// pairs that are read as windows or the other way round, a missing file of
// the reference model, what a teacher said of other tokens or in other windows,
// and weights that cannot be honoured.
TrainingData open_training_data(const TrainingDataOptions& options);

}  // namespace brigade
