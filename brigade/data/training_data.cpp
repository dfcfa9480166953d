#include "brigade/data/training_data.h"

#include "brigade/base/check.h"
#include "brigade/data/dataset_info.h"
#include "brigade/data/document_epochs.h"
#include "brigade/data/mixture.h"
#include "brigade/data/permutation.h"

namespace brigade {
namespace {

using Source = std::shared_ptr<const SampleSource>;

// One source is itself; several are a mixture.
Source combine(
    std::vector<Source> sources,
    const std::vector<double>& weights) {
  if (sources.size() == 1)
    return sources[0];
  return std::make_shared<MixtureSource>(std::move(sources), weights);
}

Source make_training_source(
    const std::shared_ptr<const TokenDataset>& dataset,
    const TrainingDataOptions& options,
    const WindowRange& windows,
    uint64_t seed) {
  if (!options.document_epochs) {
    return std::make_shared<WindowSource>(
        dataset,
        options.seq_length,
        BatchSamplerOptions{
            .windows = windows, .seed = seed, .shuffle = options.shuffle});
  }
  // The last window's last token is the first that may be held out.
  const auto seq_length = static_cast<uint64_t>(options.seq_length);
  return std::make_shared<DocumentEpochSource>(
      dataset,
      DocumentEpochOptions{
          .seq_length = options.seq_length,
          .num_tokens = windows.end * seq_length + 1,
          .seed = seed,
          .shuffle_windows = options.shuffle});
}

// Brigade's own datasets say how they were made; those of other programs, and
// of tokenizers with more tokens than the model has rows, are read once: an id
// that occurs is refused, not a size.
void check_vocabulary(
    const TokenDataset& dataset,
    const std::string& path,
    const TrainingDataOptions& options) {
  const std::filesystem::path prefix = dataset_prefix(path);
  const auto info = read_dataset_info(prefix);
  if (!info || info->vocab_size > options.vocab_size)
    check_token_ids(dataset, options.vocab_size, options.scan);
  if (info && !options.tokenizer.empty())
    require_tokenizer(*info, options.tokenizer, prefix);
}

}  // namespace

TrainingData open_training_data(const TrainingDataOptions& options) {
  BRIGADE_ASSERT(!options.parts.empty() && options.seq_length > 0);
  TrainingData data;
  std::vector<Source> training;
  std::vector<Source> held_out;
  std::vector<double> weights;
  uint64_t uncounted = 0;
  bool has_mask = false;
  for (size_t i = 0; i < options.parts.size(); ++i) {
    const TrainingDataPart& part = options.parts[i];
    const auto dataset = std::make_shared<const TokenDataset>(
        TokenDataset::open(part.path, {.vocab_size = options.vocab_size}));
    dataset->require_window(options.seq_length);
    check_vocabulary(*dataset, part.path, options);
    const WindowSplit split = split_windows(
        count_windows(dataset->num_tokens(), options.seq_length),
        options.held_out_fraction,
        part.path);
    data.num_tokens += dataset->num_tokens();
    uncounted += dataset->mask() ? dataset->num_tokens() -
                                       dataset->mask()->counting_tokens()
                                 : 0;
    has_mask = has_mask || dataset->mask();
    data.training_windows += split.training.size();
    data.held_out_windows += split.held_out.size();
    weights.push_back(part.weight);
    // Parts of equal size must not be read in the same order.
    const uint64_t seed = i == 0 ? options.seed : mix_bits(options.seed + i);
    training.push_back(
        make_training_source(dataset, options, split.training, seed));
    if (split.held_out.size() > 0) {
      held_out.push_back(std::make_shared<WindowSource>(
          dataset,
          options.seq_length,
          BatchSamplerOptions{.windows = split.held_out, .shuffle = false}));
    }
  }
  if (has_mask)
    data.counting_tokens = data.num_tokens - uncounted;
  data.training = combine(std::move(training), weights);
  if (!held_out.empty())
    data.held_out = combine(std::move(held_out), weights);
  return data;
}

}  // namespace brigade
