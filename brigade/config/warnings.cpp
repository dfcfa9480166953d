#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/units.h"
#include "brigade/config/train_config.h"
#include "brigade/model_spec/model_warnings.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/choice.h"
#include "brigade/schedule/lr_schedule.h"

namespace brigade {
namespace {

bool is_default(const LoadedConfig& loaded, std::string_view key) {
  return std::ranges::any_of(loaded.values, [&](const auto& value) {
    return value.key == key && value.origin == ValueOrigin::kDefault;
  });
}

// Of low-communication training: the steps that the run's result does not have.
void warn_of_rounds(
    const FragmentSchedule& rounds,
    int64_t last,
    std::vector<std::string>& warnings) {
  const int64_t apart_steps = last - rounds.warmup_steps;
  if (apart_steps <= 0) {
    const int64_t left = steps_not_merged(rounds, last);
    warnings.push_back(fmt::format(
        "/distributed/local_warmup_steps = {} is not less than the run's {} "
        "steps: the whole run is a warm-up{}",
        rounds.warmup_steps,
        last,
        left == 0
            ? ""
            : fmt::format(
                  ", and what the groups learn in its last {} steps does not "
                  "reach the weights that are saved",
                  left)));
  } else if ((apart_steps - rounds.delay) % rounds.local_steps != 0) {
    warnings.push_back(fmt::format(
        "the number of the run's steps, {}{}{}, is no multiple of "
        "/distributed/local_steps = {}: what the groups learn in the last {} "
        "steps does not reach the weights that are saved",
        last,
        rounds.warmup_steps == 0
            ? ""
            : fmt::format(
                  " less /distributed/local_warmup_steps = {}",
                  rounds.warmup_steps),
        rounds.delay == 0
            ? ""
            : fmt::format(" less /distributed/outer_delay = {}", rounds.delay),
        rounds.local_steps,
        steps_not_merged(rounds, last)));
  }
}

}  // namespace

std::vector<std::string> find_warnings(const LoadedConfig& loaded) {
  const TrainConfig& config = loaded.config;
  const TrainingConfig& training = config.training;
  const DistributedConfig& distributed = config.distributed;
  std::vector<std::string> warnings;
  const int64_t last = last_step(config);
  if (last > 0 && training.lr.warmup_steps > last)
    warnings.push_back(fmt::format(
        "/training/warmup_steps = {} is more than the run's {} steps: the "
        "learning rate never reaches /training/learning_rate",
        training.lr.warmup_steps,
        last));
  // No error: the config that a run writes holds what its checkpoint said.
  if (training.lr_end == LrEnd::kAtTotalTrainSteps &&
      (training.lr.decay == LrDecay::kTable ||
       training.lr.decay == LrDecay::kConstant))
    warnings.push_back(fmt::format(
        "/training/lr_end = \"{}\" has no effect with /training/lr_schedule = "
        "\"{}\", which has no end of its own: leave it out",
        to_string(*training.lr_end),
        to_string(training.lr.decay)));
  if (distributed.rounds.local_steps > 0)
    warn_of_rounds(distributed.rounds, last, warnings);
  if (!config.model.decoder)
    return warnings;
  const DecoderConfig& decoder = *config.model.decoder;
  const auto of_model = model_warnings(config.model.source);
  warnings.insert(warnings.end(), of_model.begin(), of_model.end());
  if (training.seq_length > decoder.max_position_embeddings)
    warnings.push_back(fmt::format(
        "/training/seq_length = {} is more than the model's "
        "max_position_embeddings = {}: other programs will not use the model "
        "on sequences of this length",
        training.seq_length,
        decoder.max_position_embeddings));
  const double gradient_mib = static_cast<double>(parameter_count(decoder)) *
                              4 / static_cast<double>(MiB);
  const bool has_buckets =
      distributed.grad_sync == GradSyncAlgorithm::kBucketed &&
      distributed.dims.replicas() > 1;
  if (has_buckets && distributed.bucket_cap_mb > gradient_mib &&
      !is_default(loaded, "distributed.bucket_cap_mb"))
    warnings.push_back(fmt::format(
        "/distributed/bucket_cap_mb = {} is more than all gradients of the "
        "model ({:.1f} MiB): with a single bucket little communication "
        "overlaps with backward",
        distributed.bucket_cap_mb,
        gradient_mib));
  return warnings;
}

}  // namespace brigade
