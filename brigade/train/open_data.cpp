#include "brigade/train/open_data.h"

#include "brigade/train/layout.h"

namespace brigade {

TrainingData open_training_data_of(const TrainConfig& config) {
  TrainingDataOptions options;
  if (config.dataset.mixture.empty())
    options.parts.push_back({config.dataset.name, 1});
  for (const MixturePart& part : config.dataset.mixture)
    options.parts.push_back({part.name, part.weight});
  options.seq_length = config.training.seq_length;
  options.vocab_size = model_of(config).vocab_size;
  options.seed = static_cast<uint64_t>(config.training.seed);
  options.shuffle = config.dataset.shuffle;
  options.document_epochs = config.dataset.document_epochs;
  if (config.training.eval_every > 0)
    options.held_out_fraction = config.dataset.eval_fraction;
  return open_training_data(options);
}

}  // namespace brigade
