#include "brigade/train/rate_tuner.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/config/model_layout.h"
#include "brigade/run/run_options.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/start_world.h"
#include "brigade/train/train_step.h"

namespace brigade {
namespace {

int64_t scaled_to_8(int64_t size, double factor) {
  constexpr int64_t kMultiple = 8;
  const double eighths = static_cast<double>(size) * factor / kMultiple;
  return kMultiple * std::max<int64_t>(1, std::llround(eighths));
}

// The divisor of `heads` that is nearest to `wanted`.
int64_t nearest_divisor(int64_t heads, double wanted) {
  int64_t nearest = 1;
  for (int64_t each = 1; each <= heads; ++each) {
    const auto distance = [&](int64_t count) {
      return std::abs(static_cast<double>(count) - wanted);
    };
    if (heads % each == 0 && distance(each) < distance(nearest))
      nearest = each;
  }
  return nearest;
}

// What a run of `steps` has in the place of `some` of a whole run.
int64_t share_of(int64_t some, int64_t whole, int64_t steps) {
  const double share = static_cast<double>(some) /
                       static_cast<double>(std::max<int64_t>(1, whole));
  return std::llround(share * static_cast<double>(steps));
}

// The same tokens through the model at different times.
class Activations {
 public:
  Activations(TrainStep& step, torch::Tensor ids)
      : model_(step.stages().front()->model()), ids_(std::move(ids)) {}

  void remember() {
    observe([&](const std::string& name, const torch::Tensor& value) {
      before_.emplace_back(name, value.to(torch::kFloat).clone());
    });
  }
  std::vector<ActivationChange> compare() const {
    std::vector<ActivationChange> changes;
    observe([&](const std::string& name, const torch::Tensor& value) {
      const torch::Tensor& before = before_.at(changes.size()).second;
      const torch::Tensor change = value.to(torch::kFloat) - before;
      changes.push_back(
          {name,
           before.abs().mean().item<double>(),
           change.abs().mean().item<double>()});
    });
    return changes;
  }

 private:
  void observe(const DecoderModel::Observe& observe) const {
    model_.logits(ids_, observe);
  }

  DecoderModel& model_;
  torch::Tensor ids_;
  std::vector<std::pair<std::string, torch::Tensor>> before_;
};

double mean_of_last_tenth(const std::vector<double>& losses) {
  const size_t count = std::max<size_t>(1, losses.size() / 10);
  const auto begin = losses.end() - static_cast<std::ptrdiff_t>(count);
  return std::accumulate(begin, losses.end(), 0.0) / static_cast<double>(count);
}

}  // namespace

TrainConfig with_width(const TrainConfig& config, int64_t width) {
  TrainConfig result = config;
  DecoderConfig decoder = model_of(config);
  if (config.model.init == WeightInit::kPretrained)
    throw ConfigError(
        "[tune-rate] /model/init = \"pretrained\": weights of other widths "
        "are not there; set it to \"random\"");
  if (width % decoder.head_dim != 0)
    throw ConfigError(fmt::format(
        "[tune-rate] width {} is no multiple of the model's heads of {}; give "
        "others with --widths",
        width,
        decoder.head_dim));
  if (decoder.hidden_size == width)
    return result;
  const double factor =
      static_cast<double>(width) / static_cast<double>(decoder.hidden_size);
  const double key_value_heads =
      static_cast<double>(decoder.num_key_value_heads) * factor;
  decoder.num_attention_heads = std::max<int64_t>(
      1,
      std::llround(static_cast<double>(decoder.num_attention_heads) * factor));
  decoder.num_key_value_heads =
      nearest_divisor(decoder.num_attention_heads, key_value_heads);
  decoder.intermediate_size = scaled_to_8(decoder.intermediate_size, factor);
  if (decoder.experts) {
    ExpertsConfig& experts = *decoder.experts;
    const int64_t expert_width = scaled_to_8(experts.width, factor);
    // A whole number of experts' widths stays that number.
    if (experts.shared_width % experts.width == 0)
      experts.shared_width =
          experts.shared_width / experts.width * expert_width;
    else
      experts.shared_width = scaled_to_8(experts.shared_width, factor);
    experts.width = expert_width;
  }
  decoder.hidden_size = width;
  result.model.decoder = decoder;
  std::vector<std::string> problems;
  validate_model_layout(result, decoder, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return result;
}

TrainConfig
as_short_run(const TrainConfig& config, int64_t steps, double rate) {
  TrainConfig result = config;
  TrainingConfig& training = result.training;
  const int64_t whole = last_step(config);
  training.total_train_steps = steps;
  training.max_tokens.reset();
  // 0 has a meaning of its own.
  for (int64_t* key : {&training.lr.warmup_steps, &training.lr.decay_steps}) {
    if (*key > 0)
      *key = std::max<int64_t>(1, share_of(*key, whole, steps));
  }
  if (training.lr.table) {
    for (LrPoint& point : training.lr.table->points)
      point.after = share_of(point.after, whole, steps);
  }
  const double factor = training.lr.peak > 0 ? rate / training.lr.peak : 1.0;
  training.lr.peak = rate;
  training.lr.minimum *= factor;
  training.optimizer.scale_rates(factor);
  training.eval_every = 0;
  training.on_non_finite = OnNonFinite::kSkip;
  return result;
}

RateTuner::RateTuner(TrainConfig config, const LaunchEnvironment& environment)
    : config_(std::move(config)) {
  config_.training.eval_every = 0;
  // One rank has nothing to divide, and logits() gathers no unit.
  config_.distributed.zero_stage = 0;
  mesh_ = start_world(
      config_,
      environment,
      {.prepare =
           [&] { data_ = open_training_data(training_data_options(config_)); },
       .datasets = data_names(config_)});
}

RateTrial RateTuner::try_rate(
    const RateSweep& sweep,
    int64_t width,
    double rate,
    const OnStep& on_step) const {
  const TrainConfig config =
      as_short_run(with_width(config_, width), sweep.steps, rate);
  TrainStep step(config, *mesh_, data_);
  MicroBatches batches(
      data_.training, config, mesh_->coordinate(), mesh_->device());
  batches.load_step();
  Activations activations(step, batches[0].ids);
  activations.remember();
  RateTrial trial{.width = width, .rate = rate};
  std::vector<double> losses;
  for (int64_t number = 1; number <= sweep.steps; ++number) {
    const StepResult result = step.run(number);
    if (result.skipped == StepResult::Skipped::kNotFinite)
      return trial;
    if (std::isfinite(result.loss))  // else no token of the batch counts
      losses.push_back(result.loss);
    on_step(number, result.loss);
    if (number == sweep.checked_steps)
      trial.activations = activations.compare();
  }
  if (!losses.empty())
    trial.loss = mean_of_last_tenth(losses);
  return trial;
}

}  // namespace brigade
