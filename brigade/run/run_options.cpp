#include "brigade/run/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/units.h"
#include "brigade/config/model_layout.h"
#include "brigade/model_spec/optimizer_memory.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {

int64_t bucket_capacity_bytes(const DistributedConfig& distributed) {
  return std::llround(distributed.bucket_cap_mb * static_cast<double>(MiB));
}

BucketPlanOptions bucket_plan_options(const TrainConfig& config) {
  const DistributedConfig& distributed = config.distributed;
  BucketPlanOptions options;
  options.capacity_bytes = bucket_capacity_bytes(distributed);
  options.ranks = distributed.dims.replicas() / distributed.replica_groups();
  align_to_blocks(options, state_block_numel(config.training.optimizer));
  return options;
}

WeightWidth weight_width(const TrainConfig& config) {
  return config.model.dtype == ModelDtype::kBfloat16 ? WeightWidth::k16Bit
                                                     : WeightWidth::k32Bit;
}

LrScheduleOptions lr_schedule_options(
    const TrainingConfig& training,
    int64_t last_step) {
  LrScheduleOptions options = training.lr;
  options.end = training.lr_end.value_or(LrEnd::kAfterLastStep);
  options.total_steps = options.end == LrEnd::kAtTotalTrainSteps
                            ? training.total_train_steps
                            : last_step;
  return options;
}

LrScheduleOptions
lr_schedule_options(const TrainConfig& config, int64_t steps, int64_t tokens) {
  LrScheduleOptions options =
      lr_schedule_options(config.training, last_step(config, steps, tokens));
  options.step_tokens = tokens_per_step(config);
  options.tokens_ahead = tokens - steps * options.step_tokens;
  return options;
}

namespace {

// By samples of the run.
WeightTable weight_table(const MixturePart& part, const TrainConfig& config) {
  const int64_t seq_length = config.training.seq_length;
  WeightTable table;
  for (const MixtureWeight& point : part.weights) {
    const int64_t sample =
        part.unit == PointUnit::kTokens
            ? point.after / seq_length
            : point.after * (tokens_per_step(config) / seq_length);
    table.push_back({static_cast<uint64_t>(sample), point.weight});
  }
  return table;
}

}  // namespace

TrainingDataOptions training_data_options(
    const TrainConfig& config,
    TokenScanOptions scan) {
  TrainingDataOptions options;
  options.scan = std::move(scan);
  const DatasetConfig& dataset = config.dataset;
  if (dataset.text) {
    options.parts.push_back(
        {.path = dataset.text->front(),
         .text = TextInput{
             .paths = {dataset.text->begin(), dataset.text->end()},
             .tokenizer = tokenizer_of_text(config),
             .key = dataset.text_key,
             .prepend_bos = dataset.prepend_bos,
             .python = dataset.python}});
  } else if (dataset.mixture.empty()) {
    options.parts.push_back({.path = dataset.name});
  }
  for (const MixturePart& part : dataset.mixture)
    options.parts.push_back(
        {.path = part.name,
         .weight = part.weight,
         .weights = weight_table(part, config)});
  options.seq_length = config.training.seq_length;
  options.vocab_size = model_of(config).vocab_size;
  options.seed = static_cast<uint64_t>(config.training.seed);
  options.dataset = static_cast<const DatasetOptions&>(dataset);
  using Samples = TrainingDataOptions::Samples;
  if (config.training.loss.is_of_pairs())
    options.samples = config.training.loss.needs_reference()
                          ? Samples::kPairsWithReference
                          : Samples::kPairs;
  if (config.training.eval_every > 0)
    options.held_out_fraction = config.dataset.eval_fraction;
  return options;
}

std::vector<std::string> data_names(const TrainConfig& config) {
  if (config.dataset.text)
    return *config.dataset.text;
  std::vector<std::string> names;
  if (config.dataset.mixture.empty())
    names.push_back(config.dataset.name);
  if (!config.dataset.teacher.empty())
    names.push_back(config.dataset.teacher);
  for (const MixturePart& part : config.dataset.mixture)
    names.push_back(part.name);
  return names;
}

LoaderOptions loader_options(const TrainConfig& config, const Coordinate& at) {
  const ParallelDims& dims = config.distributed.dims;
  LoaderOptions options;
  options.layout = {
      config.training.micro_batch_size,
      config.training.gradient_accumulation_steps,
      dims.batch_parts(),
      dims.place(kBatchAxes, at)};
  options.reset_attention = config.dataset.reset_attention;
  return options;
}

int64_t evaluation_steps(const TrainConfig& config, uint64_t held_out_samples) {
  const auto whole =
      static_cast<int64_t>(held_out_samples) / sequences_per_step(config);
  return std::clamp<int64_t>(whole, 1, config.training.eval_steps);
}

std::string describe_short_evaluation(
    const TrainConfig& config,
    uint64_t held_out_samples) {
  const int64_t steps = evaluation_steps(config, held_out_samples);
  const int64_t batch = sequences_per_step(config);
  const bool repeats = static_cast<int64_t>(held_out_samples) < batch;
  if (steps == config.training.eval_steps && !repeats)
    return "";
  return fmt::format(
      "an evaluation has {} of training.eval_steps = {} batches of {} windows: "
      "one pass of the held-out part has {}{}",
      steps,
      config.training.eval_steps,
      batch,
      held_out_samples,
      repeats ? ", less than one batch: some count more than once" : "");
}

int reporting_rank(const TrainConfig& config) {
  const ParallelDims dims = config.parallel_dims();
  return dims.rank({.pp = dims.pp - 1});
}

uint64_t checkpoint_bytes(const TrainConfig& config) {
  // Files have the whole master, of which a bf16 weight is the other half.
  const bool is_bf16 = config.model.dtype == ModelDtype::kBfloat16;
  const bool keeps_averages = config.training.optimizer.averages_weights();
  const uint64_t weight_bytes = is_bf16 ? 2 + 2 : (keeps_averages ? 4 + 4 : 4);
  uint64_t numel = 0;
  uint64_t kept_bytes = 0;
  for (const ParameterRow& row : list_parameters(description_of(config))) {
    if (row.stored_in == StoredIn::kBaseModel)
      continue;
    numel += static_cast<uint64_t>(row.numel());
    kept_bytes += static_cast<uint64_t>(state_bytes(
        row,
        row.numel(),
        config.training.optimizer,
        row.is_float32 ? WeightWidth::k32Bit : weight_width(config)));
  }
  // Each group's weights, moments and errors; the outer optimizer's momentum,
  // and what is under way.
  const DistributedConfig& distributed = config.distributed;
  const uint64_t outer_bytes =
      distributed.rounds.local_steps == 0
          ? 0
          : 8 + 16 * static_cast<uint64_t>(distributed.replica_groups());
  // What the wire lost of each rank's gradients.
  const bool keeps_errors = distributed.grad_wire == GradWire::kInt8 ||
                            distributed.grad_wire == GradWire::kPowerSgd;
  const uint64_t error_bytes =
      keeps_errors ? 4 * static_cast<uint64_t>(distributed.dims.replicas()) : 0;
  return numel * (weight_bytes + outer_bytes + error_bytes) + kept_bytes;
}

}  // namespace brigade
