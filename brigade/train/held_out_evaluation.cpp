#include "brigade/train/held_out_evaluation.h"

#include <utility>

#include "brigade/config/model_layout.h"
#include "brigade/run/run_options.h"

namespace brigade {

HeldOutEvaluation::HeldOutEvaluation(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    TrainStep& step,
    const TrainingData& data,
    Hooks hooks)
    : config_(config), mesh_(mesh), step_(step), hooks_(std::move(hooks)) {
  all_ = make_samples("", data.held_out);
  if (!config.dataset.eval_parts || data.parts.size() <= 1)
    return;
  for (const TrainingPart& part : data.parts)
    parts_.push_back(make_samples(part.path, part.held_out));
}

std::unique_ptr<HeldOutEvaluation::Samples> HeldOutEvaluation::make_samples(
    std::string name,
    std::shared_ptr<const SampleSource> source) {
  const int64_t steps = evaluation_steps(config_, source->samples_per_epoch());
  std::unique_ptr<Samples> samples(new Samples{
      std::move(name),
      MicroBatches(
          std::move(source), config_, mesh_.coordinate(), mesh_.device()),
      nullptr,
      steps});
  samples->executor =
      step_.make_executor(evaluation_schedule(config_), samples->batches);
  return samples;
}

std::optional<TokenLoss> HeldOutEvaluation::loss_over(Samples& samples) {
  const torch::NoGradGuard no_grad;
  samples.batches.seek_sample(0);
  for (const auto& stage : step_.stages())
    stage->show_averages();
  TokenLoss total;
  // Read a batch later, so that no stage waits for those behind it.
  auto asked = torch::zeros({1}, torch::kDouble);
  WorkPtr asking = make_completed_work();
  for (int64_t i = 0; i < samples.steps && !stop_; ++i) {
    hooks_.on_batch();
    samples.batches.load_step();
    const TokenLoss loss =
        step_.whole_loss(samples.executor->run(), samples.batches);
    total.nats += loss.nats;
    total.tokens += loss.tokens;
    asking->wait_on_host();
    stop_ = asked.item<double>() > 0;
    asked = torch::full({1}, hooks_.wants_stop() ? 1.0 : 0.0, torch::kDouble);
    asking = mesh_.world()->all_reduce(asked);
  }
  // What the last batch learns ends only what follows it.
  const bool is_whole = !stop_;
  asking->wait_on_host();
  stop_ = stop_ || asked.item<double>() > 0;
  for (const auto& stage : step_.stages())
    stage->hide_averages();
  return is_whole ? std::optional(total) : std::nullopt;
}

bool HeldOutEvaluation::run(StepMetrics& metrics) {
  stop_ = false;
  const auto loss = loss_over(*all_);
  if (loss && loss->tokens > 0)
    metrics.eval_loss = loss->mean();
  if (loss)
    metrics.eval_preference = step_.take_preference();
  for (const auto& part : parts_) {
    if (stop_)
      break;
    const auto of_part = loss_over(*part);
    if (of_part && of_part->tokens > 0)
      metrics.part_eval_losses.emplace_back(part->name, of_part->mean());
  }
  return stop_;
}

}  // namespace brigade
