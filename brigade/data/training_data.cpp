#include "brigade/data/training_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/data/dataset_info.h"
#include "brigade/data/document_epochs.h"
#include "brigade/data/mixture.h"
#include "brigade/data/pair_source.h"
#include "brigade/data/reference_log_probs.h"
#include "brigade/data/taught_source.h"
#include "brigade/data/teacher_file.h"
#include "brigade/data/text_windows.h"

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

WeightTable weights_of(const TrainingDataPart& part) {
  return part.weights.empty() ? WeightTable{{0, part.weight}} : part.weights;
}

double largest_weight(const TrainingDataPart& part) {
  double largest = 0;
  for (const WeightPoint& point : weights_of(part))
    largest = std::max(largest, point.weight);
  return largest;
}

std::shared_ptr<const MixtureSchedule> schedule_of(
    const std::vector<TrainingDataPart>& parts) {
  std::vector<WeightTable> tables;
  for (const TrainingDataPart& part : parts)
    tables.push_back(weights_of(part));
  return std::make_shared<const MixtureSchedule>(std::move(tables));
}

// The order of samples in training, and of those that are held out.
BatchSamplerOptions training_order(
    const TrainingDataOptions& options,
    const WindowRange& windows,
    uint64_t seed) {
  return {
      .windows = windows,
      .seed = seed,
      .shuffle = options.dataset.shuffle,
      .shuffle_block = options.dataset.shuffle_block};
}

BatchSamplerOptions held_out_order(const WindowRange& windows) {
  return {.windows = windows, .shuffle = false};
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
  if (info && !options.dataset.tokenizer.empty())
    require_tokenizer(*info, options.dataset.tokenizer, prefix);
  const bool has_pairs = info && info->num_pairs > 0;
  const bool wants_pairs =
      options.samples != TrainingDataOptions::Samples::kWindows;
  if (has_pairs && !wants_pairs)
    throw ConfigError(fmt::format(
        "[config] /training/loss is a mean over tokens, but '{}' holds {} "
        "pairs "
        "of a chosen and a rejected answer: set it to \"dpo\", \"orpo\" or "
        "\"simpo\", or choose another dataset",
        prefix.string(),
        info->num_pairs));
  if (!has_pairs && wants_pairs)
    throw ConfigError(fmt::format(
        "[config] /training/loss is one of pairs, but '{}' holds none: make it "
        "with `brigade prepare --chat FILE` from lines with \"chosen\" and "
        "\"rejected\", or set it to \"cross_entropy\"",
        prefix.string()));
}

std::shared_ptr<TextTokens> open_text(
    const TrainingDataPart& part,
    const TrainingDataOptions& options) {
  if (options.scan.cache_dir.empty())
    throw ConfigError(
        "[config] /dataset/text: no folder is known for its tokens; for "
        "`brigade "
        "train` set HOME or XDG_CACHE_HOME, for other commands use "
        "dataset.name");
  return std::make_shared<TextTokens>(
      *part.text,
      TextTokensOptions{
          .folder = options.scan.cache_dir / "text_tokens",
          .vocab_size = options.vocab_size,
          .on_progress = options.on_tokenize});
}

// Whether the first windows of the text do not depend on its end.
bool can_begin_early(const TrainingDataOptions& options) {
  return options.parts.size() == 1 && options.held_out_fraction == 0 &&
         !options.dataset.document_epochs &&
         options.dataset.packing == Packing::kNone &&
         (!options.dataset.shuffle || options.dataset.shuffle_block > 0);
}

std::shared_ptr<const TokenDataset> open_dataset(
    const TrainingDataPart& part,
    const TrainingDataOptions& options) {
  const auto dataset = std::make_shared<const TokenDataset>(
      TokenDataset::open(part.path, {.vocab_size = options.vocab_size}));
  check_vocabulary(*dataset, part.path, options);
  return dataset;
}

// What the teacher says, once it is known to fit what is trained on.
std::shared_ptr<const TeacherFile> open_teacher(
    const TokenDataset& dataset,
    const TrainingDataOptions& options) {
  auto teacher = std::make_shared<const TeacherFile>(options.dataset.teacher);
  const TeacherFileInfo& info = teacher->info();
  const bool is_packed = options.dataset.packing != Packing::kNone;
  const std::string again = fmt::format(
      "make it with `brigade evaluate --run TEACHER --dataset {} --top-k FILE "
      "{}`",
      options.parts[0].path,
      is_packed ? "--by-document"
                : fmt::format("--seq-length {}", options.seq_length));
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format(
        "[config] /dataset/teacher = \"{}\" {}",
        options.dataset.teacher,
        what));
  };
  if (const std::string other = teacher->unlike(dataset); !other.empty())
    refuse(fmt::format("was made of another dataset: {}; {}", other, again));
  if (info.vocabulary > options.vocab_size)
    refuse(fmt::format(
        "has ids below {}, but the model's vocabulary has {}: teacher and "
        "student need one tokenizer. Where the teacher has more rows than that "
        "has tokens, prepare the dataset with `brigade prepare`, which notes "
        "how many these are, and {}",
        info.vocabulary,
        options.vocab_size,
        again));
  if (info.window_length == (is_packed ? 0 : options.seq_length))
    return teacher;
  refuse(fmt::format(
      "is of a teacher that read {}, but the student reads {}: {}",
      info.window_length == 0
          ? "each document by itself"
          : fmt::format("windows of {} tokens", info.window_length),
      is_packed
          ? "each document by itself (dataset.packing)"
          : fmt::format(
                "windows of {} (training.seq_length)", options.seq_length),
      again));
  return nullptr;
}

// What a dataset gives to train on, and the part of it that is held out.
struct Sources {
  Source training;
  Source held_out;  // null: nothing
  std::optional<PackingCounts> packing;
};

Sources cut_windows(
    const std::shared_ptr<const TokenDataset>& dataset,
    const TrainingDataPart& part,
    const TrainingDataOptions& options,
    uint64_t seed) {
  dataset->require_window(options.seq_length);
  const WindowSplit split = split_windows(
      count_windows(dataset->num_tokens(), options.seq_length),
      options.held_out_fraction,
      part.path);
  const auto order = training_order(options, split.training, seed);
  Sources sources;
  if (options.dataset.document_epochs)
    sources.training = std::make_shared<DocumentEpochSource>(
        dataset, options.seq_length, order);
  else
    sources.training =
        std::make_shared<WindowSource>(dataset, options.seq_length, order);
  if (split.held_out.size() > 0)
    sources.held_out = std::make_shared<WindowSource>(
        dataset, options.seq_length, held_out_order(split.held_out));
  return sources;
}

Sources pack_documents(
    const std::shared_ptr<const TokenDataset>& dataset,
    const TrainingDataPart& part,
    const TrainingDataOptions& options,
    uint64_t seed) {
  const uint64_t documents = dataset->documents().size();
  if (documents < 2)
    throw DataError(fmt::format(
        "[packing] '{}' ({}) has no boundaries between documents: "
        "dataset.packing needs several; leave it out, or prepare the text with "
        "`brigade prepare`",
        part.path,
        dataset->format()));
  const uint64_t end =
      options.held_out_fraction > 0
          ? first_held_out_document(
                documents, options.held_out_fraction, part.path)
          : documents;
  const auto packed = [&](const BatchSamplerOptions& order) {
    return std::make_shared<PackedDocuments>(
        dataset, options.seq_length, order, options.dataset.long_documents);
  };
  const auto training = packed(training_order(options, {0, end}, seed));
  Sources sources{
      .training = training, .held_out = {}, .packing = training->counts()};
  if (end < documents)
    sources.held_out = packed(held_out_order({end, documents}));
  return sources;
}

void add_teacher(
    const std::shared_ptr<const TokenDataset>& dataset,
    const TrainingDataOptions& options,
    Sources& sources) {
  const auto teacher = open_teacher(*dataset, options);
  for (Source* source : {&sources.training, &sources.held_out}) {
    if (*source)
      *source = std::make_shared<TaughtSource>(*source, dataset, teacher);
  }
}

TrainingData open_pairs(const TrainingDataOptions& options) {
  BRIGADE_ASSERT(options.parts.size() == 1 && !options.parts[0].text);
  const std::string& path = options.parts[0].path;
  const auto pairs = std::make_shared<PairDataset>();
  pairs->dataset = open_dataset(options.parts[0], options);
  pairs->require_fits(options.seq_length);
  if (options.samples == TrainingDataOptions::Samples::kPairsWithReference)
    pairs->reference = read_reference(*pairs->dataset).log_probs;
  const WindowSplit split =
      split_windows(pairs->num_pairs(), options.held_out_fraction, path);
  const auto source = [&](const BatchSamplerOptions& order) {
    return std::make_shared<PairSource>(pairs, options.seq_length, order);
  };
  TrainingData data;
  data.training = source(training_order(options, split.training, options.seed));
  if (split.held_out.size() > 0)
    data.held_out = source(held_out_order(split.held_out));
  data.num_tokens = pairs->dataset->num_tokens();
  data.counting_tokens = pairs->dataset->counting_tokens();
  data.training_windows = 2 * split.training.size();
  data.held_out_windows = 2 * split.held_out.size();
  data.parts = {
      {.path = path,
       .training_windows = data.training_windows,
       .held_out = data.held_out}};
  data.schedule = schedule_of(options.parts);
  return data;
}

}  // namespace

TrainingData open_training_data(const TrainingDataOptions& options) {
  BRIGADE_ASSERT(!options.parts.empty() && options.seq_length > 0);
  if (options.samples != TrainingDataOptions::Samples::kWindows)
    return open_pairs(options);
  TrainingData data;
  std::vector<Source> training;
  std::vector<Source> held_out;
  std::vector<double> weights;
  std::vector<double> largest_weights;
  uint64_t counting = 0;
  bool has_mask = false;
  for (size_t i = 0; i < options.parts.size(); ++i) {
    const TrainingDataPart& part = options.parts[i];
    // Parts of equal size must not be read in the same order.
    const uint64_t seed = i == 0 ? options.seed : mix_bits(options.seed + i);
    std::shared_ptr<const TokenDataset> dataset;
    if (part.text) {
      const auto tokens = open_text(part, options);
      data.text_bytes += tokens->text_bytes();
      if (options.text == TrainingDataOptions::Text::kCheck)
        return data;
      if (can_begin_early(options)) {
        data.training = std::make_shared<TextWindowSource>(
            tokens, options.seq_length, training_order(options, {}, seed));
        return data;
      }
      dataset = tokens->wait_for_all().dataset;
    } else {
      dataset = open_dataset(part, options);
    }
    Sources sources = options.dataset.packing == Packing::kNone
                          ? cut_windows(dataset, part, options, seed)
                          : pack_documents(dataset, part, options, seed);
    if (!options.dataset.teacher.empty())
      add_teacher(dataset, options, sources);
    const uint64_t windows = sources.training->samples_per_epoch();
    data.num_tokens += dataset->num_tokens();
    counting += dataset->counting_tokens().value_or(dataset->num_tokens());
    has_mask = has_mask || dataset->counting_tokens();
    if (sources.packing)
      data.packing = data.packing.value_or(PackingCounts()) += *sources.packing;
    data.training_windows += windows;
    weights.push_back(part.weight);
    largest_weights.push_back(largest_weight(part));
    data.parts.push_back(
        {.path = part.path,
         .training_windows = windows,
         .held_out = sources.held_out});
    training.push_back(sources.training);
    if (sources.held_out) {
      data.held_out_windows += sources.held_out->samples_per_epoch();
      held_out.push_back(sources.held_out);
    }
  }
  if (has_mask)
    data.counting_tokens = counting;
  const bool changes = std::any_of(
      options.parts.begin(), options.parts.end(), [](const auto& part) {
        return !part.weights.empty();
      });
  if (changes && options.parts.size() > 1) {
    data.schedule = schedule_of(options.parts);
    data.training = std::make_shared<ScheduledMixtureSource>(
        std::move(training), data.schedule);
  } else {
    data.training = combine(std::move(training), weights);
    data.schedule = schedule_of(options.parts);
  }
  if (!held_out.empty())
    data.held_out = combine(std::move(held_out), largest_weights);
  return data;
}

}  // namespace brigade
