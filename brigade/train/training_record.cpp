#include "brigade/train/training_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/files/file.h"
#include "brigade/launch/network.h"
#include "brigade/metrics/prometheus.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/run_options.h"

namespace brigade {

TrainingRecord::TrainingRecord(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    RunObserver* inner,
    std::map<std::string, std::string> origins)
    : config_(config),
      rank_(environment.rank),
      reports_(environment.rank == reporting_rank(config)),
      recorded_(inner, environment, std::move(origins)),
      spikes_(config.training.loss_spike_limit),
      trace_(environment.rank) {}

void TrainingRecord::open(
    const std::string& run,
    int64_t step,
    const std::optional<std::filesystem::path>& checkpoint) {
  const LoggingConfig& logging = config_.logging;
  const RunFolder folder{logging.run_dir};
  if (const auto aside = set_aside_other_run(folder, run); !aside.empty())
    recorded_.on_message(fmt::format(
        "'{}' held the record of another run, which is in '{}' now",
        folder.path.string(),
        aside.string()));
  recorded_.open(folder.events());
  MetricsFile::cut_back(folder.metrics(), step);
  if (checkpoint && config_.training.loss_spike_limit > 0)
    recall_losses(step, *checkpoint);
  metrics_ = std::make_unique<MetricsFile>(folder.metrics());
  if (!logging.tensorboard && !logging.use_wandb)
    return;
  events_ =
      std::make_unique<TfEventsFile>(logging.run_dir, host_name(), step + 1);
  if (logging.use_wandb)
    recorded_.on_message(fmt::format(
        "logging.use_wandb: nothing is uploaded while training; afterwards, "
        "wandb sync {}",
        logging.run_dir));
}

// What a loss is held against to be a spike: the steps before the checkpoint
// that is continued, of this run folder or of the one that it lies in.
void TrainingRecord::recall_losses(
    int64_t step,
    const std::filesystem::path& checkpoint) {
  auto losses = read_losses(RunFolder{config_.logging.run_dir}.metrics(), step);
  if (losses.empty())
    losses = read_losses(
        RunFolder{checkpoint.parent_path().parent_path()}.metrics(), step);
  for (const double loss : losses)
    spikes_.add(loss);
}

void TrainingRecord::add_step(const StepMetrics& metrics, int64_t last_step) {
  const LoggingConfig& logging = config_.logging;
  for (const std::string& message :
       idle_experts_.add(metrics.step, metrics.experts))
    observer().on_message(message);
  const bool is_shown = is_logged(metrics, logging.log_frequency, last_step);
  if (metrics_) {
    keep([&] {
      metrics_->write(
          metrics,
          is_shown ? rows_in_line(
                         metrics.experts, metrics.step / logging.log_frequency)
                   : ExpertRows::kLeaveOut);
    });
  }
  if (events_)
    keep([&] { events_->write(metrics); });
  if (reports_ && !logging.prometheus_file.empty() && is_shown)
    keep([&] {
      write_text_file(
          logging.prometheus_file, prometheus_text(metrics, logging.run_name));
    });
  observer().on_step(metrics);
  if (const auto score = spikes_.add(metrics.loss)) {
    observer().on_message(fmt::format(
        "step {}: the loss {:.4f} is a spike, {:.1f} standard deviations "
        "above the mean of those before it",
        metrics.step,
        metrics.loss,
        *score));
  }
}

void TrainingRecord::keep(const std::function<void()>& write) {
  try {
    write();
  } catch (const StorageError& error) {
    unwritten_ = error.what();
  }
}

void TrainingRecord::throw_if_unwritten(Communicator& world, int64_t saved_step)
    const {
  const auto texts = Agreement(world).texts(unwritten());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty())
      throw StorageError(fmt::format(
          "[trainer] rank {}: {}; the run stopped after step {}, which is "
          "saved in '{}'",
          rank,
          texts[rank],
          saved_step,
          checkpoint_folder(config_).string()));
  }
}

bool TrainingRecord::is_traced(int64_t step) const {
  const auto& steps = config_.logging.trace_steps;
  return steps && std::ranges::find(*steps, step) != steps->end();
}

std::optional<std::filesystem::path> TrainingRecord::trace_path() const {
  if (trace_.empty())
    return std::nullopt;
  return RunFolder{config_.logging.run_dir}.trace(rank_);
}

void TrainingRecord::keep_trace(int64_t step) {
  if (is_traced(step))
    keep([&] { write_trace(); });
}

void TrainingRecord::write_trace() const {
  const auto path = RunFolder{config_.logging.run_dir}.trace(rank_);
  try {
    // Another machine's disk need not have the folder that rank 0 made.
    std::filesystem::create_directories(path.parent_path());
  } catch (const std::filesystem::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[trainer] cannot make '{}' for the trace: {}",
        path.parent_path().string(),
        error.code().message()));
  }
  write_text_file(path, trace_.to_json());
}

}  // namespace brigade
