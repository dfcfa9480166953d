#include "cli/training_output.h"

#include <fmt/format.h>

#include "brigade/base/shell_word.h"
#include "cli/standard_streams.h"

namespace brigade::cli {

void TrainingOutput::on_start(const RunStart& start) {
  const TrainConfig& config = start.config;
  line_ = {
      .rank = start.rank,
      .total_steps = start.last_step,
      .device = start.device,
      .global_batch_tokens = start.tokens_per_step,
      .max_tokens = config.training.max_tokens};
  folder_.path = config.logging.run_dir;
  continues_ = !config.checkpoint.load_path.empty();
  total_steps_ = start.last_step;
  traces_ = config.logging.trace_steps.has_value();
  log_frequency_ = config.logging.log_frequency;
  clear_bars();
  bar_ = std::make_unique<ProgressBar>("", total_steps_, visible_);
  bar_->set_columns(columns_);
  const int64_t ranks = config.parallel_dims().world_size();
  write_log(
      "{} parameters in {}, {}; {} tokens per step over {} rank{}; MFU against "
      "the measured {} product rate of {:.0f} GFLOP/s per rank\n",
      readable(static_cast<double>(start.parameters)),
      to_string(config.model.dtype),
      config.parallel_dims().product(),
      start.tokens_per_step,
      ranks,
      ranks == 1 ? "" : "s",
      to_string(config.model.dtype),
      start.peak_flops / 1e9);
  if (start.first_step > 1)
    write_log(
        "continuing run {} after step {} of {}\n",
        folder_.path.string(),
        start.first_step - 1,
        total_steps_);
}

std::string TrainingOutput::bar_text(const StepMetrics& metrics) const {
  const char* bold = colour_ == Colour::kYes ? "\033[1m" : "";
  const char* plain = colour_ == Colour::kYes ? "\033[0m" : "";
  return fmt::format(
      "{}/{}  {}loss {:.4f}{}  lr {:.2e}  norm {:.3f}  {} tokens/s",
      metrics.step,
      total_steps_,
      bold,
      metrics.loss,
      plain,
      metrics.lr,
      metrics.grad_norm,
      readable(metrics.tokens_per_second));
}

void TrainingOutput::on_step(const StepMetrics& metrics) {
  if (is_logged(metrics, log_frequency_, total_steps_)) {
    bar_->clear();
    std::string line = log_line(metrics, line_);
    if (metrics.eval_loss)
      line += fmt::format(" | Eval loss: {:6.4f}", *metrics.eval_loss);
    write_log("{}\n", line);
  }
  bar_->draw(metrics.step, bar_text(metrics));
  last_ = metrics;
}

void TrainingOutput::clear_bars() {
  preparation_.clear();
  if (bar_)
    bar_->clear();
}

void TrainingOutput::on_progress(const RunProgress& progress) {
  preparation_.show(
      progress.what,
      progress.done,
      progress.total,
      progress.unit == RunProgress::Unit::kBytes ? RateBar::Unit::kBytes
                                                 : RateBar::Unit::kTokens);
}

void TrainingOutput::on_checkpoint(const std::filesystem::path& path) {
  clear_bars();
  write_log("saved {}\n", path.string());
}

void TrainingOutput::on_message(const std::string& line) {
  clear_bars();
  write_log("{}\n", line);
}

void TrainingOutput::on_end(const RunEnd& end) {
  bar_->clear();
  if (end.end == TrainingEnd::kStopped)
    write_log(
        "stopped after step {} as asked; checkpoint.load_path=auto goes on\n",
        end.steps);
  if (end.trained_tokens == 0) {
    write_log(
        "nothing {}: the {} is at step {} of {}; raise {} to go on\n",
        continues_ ? "to do" : "was trained",
        continues_ ? "checkpoint" : "run",
        end.steps,
        total_steps_,
        line_.max_tokens ? "training.total_train_steps or training.max_tokens"
                         : "training.total_train_steps");
    return;
  }
  for (const SyncReport& report : last_.reports) {
    write_log(
        "\nstep {}: what communication cost, by bucket\n{}",
        last_.step,
        report.table(end.replicas));
  }
  write_log(
      "\nfinal loss {:.4f} after {} steps, {:.0f} tokens/s\n",
      last_.loss,
      end.steps,
      static_cast<double>(end.trained_tokens) / end.seconds);
  print_files(end);
}

void TrainingOutput::print_files(const RunEnd& end) const {
  write_log(
      "  metrics     {}\n  checkpoint  {}\n",
      folder_.metrics().string(),
      end.checkpoint.string());
  if (end.trace) {
    write_log(
        "  trace       {}, one per rank: for https://ui.perfetto.dev\n",
        end.trace->string());
  } else if (traces_) {
    write_log("  trace       none: no step of logging.trace_steps was run\n");
  }
  write_log(
      "next: brigade generate --run {} --prompt \"Once\"\n",
      shell_path(end.checkpoint.string()));
}

}  // namespace brigade::cli
