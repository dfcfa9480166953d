#include "brigade/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/files/file.h"
#include "brigade/kernels/cpu/allocator.h"
#include "brigade/metrics/clock.h"
#include "brigade/metrics/metrics.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/metrics/trace.h"
#include "brigade/model_spec/llama_config.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/train/from_config.h"
#include "brigade/train/layout.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/peak_rate.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/start_world.h"
#include "brigade/train/train_step.h"

namespace brigade {
namespace {

class Trainer {
 public:
  Trainer(
      const TrainConfig& config,
      const LaunchEnvironment& environment,
      const TrainingOptions& options);
  void run();

 private:
  StepMetrics train_step(int64_t step);
  // The mean loss over eval_steps global batches of the held-out part; the same
  // samples every time and under every layout.
  double evaluate();
  void save(int64_t step);
  void report(const StepMetrics& metrics);
  bool is_traced(int64_t step) const;
  void write_trace();
  bool is_done() const;
  void run_steps();
  bool reports() const { return mesh_->rank() == reporting_rank(config_); }

  TrainConfig config_;
  TrainingOptions options_;
  std::unique_ptr<ProcessMesh> mesh_;
  TrainingData data_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<MicroBatches> held_out_;
  std::unique_ptr<PipelineExecutor> evaluator_;
  int64_t steps_done_ = 0;
  int64_t tokens_done_ = 0;
  double peak_flops_ = 1;  // of this rank
  Trace trace_;
  std::unique_ptr<MetricsFile> metrics_;
  int64_t saved_step_ = -1;  // of the newest checkpoint; -1: none
  RunObserver silent_;
  RunObserver& observer_;  // silent_ on ranks that do not report
};

Trainer::Trainer(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options)
    : config_(config),
      options_(options),
      trace_(environment.rank),
      observer_(
          options.observer != nullptr &&
                  environment.rank == reporting_rank(config)
              ? *options.observer
              : silent_) {
  // What can fail without peers fails before there are any.
  data_ = open_training_data(
      training_data_options(config_, {.cache_dir = options.cache_dir}));
  if (environment.rank == 0) {
    number_run_folder(config_);
    check_run_folder(config_);
  }
  mesh_ = start_world(config, environment, options.store);
  const Agreement agreement(*mesh_->world());
  config_.logging.run_dir = agreement.text_of(0, config_.logging.run_dir);
  config_.checkpoint.save_dir =
      agreement.text_of(0, config_.checkpoint.save_dir);
  if (mesh_->rank() == 0)
    open_run_folder(config_);
  mesh_->world()->barrier();
  if (reports()) {
    metrics_ = std::make_unique<MetricsFile>(
        RunFolder{config_.logging.run_dir}.metrics());
  }

  step_ = std::make_unique<TrainStep>(config_, *mesh_, data_);
  if (data_.held_out) {
    held_out_ = std::make_unique<MicroBatches>(
        data_.held_out, config_, mesh_->coordinate());
    evaluator_ = step_->make_executor(evaluation_schedule(config_), *held_out_);
  }
  if (!config_.checkpoint.load_path.empty()) {
    const RunPosition position = load_run(config_, step_->stages());
    steps_done_ = position.steps;
    tokens_done_ = position.tokens;
    step_->seek(steps_done_);
    saved_step_ = steps_done_;
  }
  using Access = PeakRateCache::Access;
  peak_flops_ = peak_flops(
      scalar_type(config_.model.dtype),
      environment.local_world_size,
      {options_.cache_dir, reports() ? Access::kReadAndWrite : Access::kRead});
}

StepMetrics Trainer::train_step(int64_t step) {
  const StepResult result =
      step_->run(step, is_traced(step) ? &trace_ : nullptr);
  StepMetrics metrics;
  if (config_.run.report_overlap) {
    for (const auto& stage : step_->stages())
      metrics.reports.push_back(stage->sync().report());
  }
  const int64_t tokens = tokens_per_step(config_);
  tokens_done_ += tokens;
  steps_done_ = step;
  const double seconds =
      static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
  metrics.step = step;
  metrics.loss = result.loss;
  metrics.lr = result.lr;
  metrics.grad_norm = result.grad_norm;
  metrics.tokens = tokens_done_;
  metrics.tokens_per_second = static_cast<double>(tokens) / seconds;
  metrics.tokens_per_second_per_device =
      metrics.tokens_per_second / mesh_->world()->size();
  metrics.mfu =
      100 * metrics.tokens_per_second_per_device *
      flops_per_token(model_of(config_), config_.training.seq_length) /
      peak_flops_;
  metrics.memory_gb = result.memory_gb;
  metrics.step_ms = seconds * 1e3;
  metrics.exposed_comm_ms = static_cast<double>(result.exposed_ns) / 1e6;
  return metrics;
}

bool Trainer::is_traced(int64_t step) const {
  const auto& steps = config_.logging.trace_steps;
  return steps && std::find(steps->begin(), steps->end(), step) != steps->end();
}

// After each traced step: what was seen survives a run that fails later.
void Trainer::write_trace() {
  const auto path = RunFolder{config_.logging.run_dir}.trace(mesh_->rank());
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

double Trainer::evaluate() {
  const torch::NoGradGuard no_grad;
  held_out_->seek(0);
  double total = 0;
  for (int64_t i = 0; i < config_.training.eval_steps; ++i) {
    held_out_->load_step();
    total += step_->whole_loss(evaluator_->run());
  }
  return total / static_cast<double>(
                     config_.training.eval_steps * tokens_per_step(config_));
}

void Trainer::save(int64_t step) {
  const auto path = checkpoint_folder(config_) / std::to_string(step);
  save_run(path, config_, *mesh_, step_->stages(), {step, tokens_done_});
  saved_step_ = step;
  observer_.on_checkpoint(path);
}

void Trainer::report(const StepMetrics& metrics) {
  if (metrics_)
    metrics_->write(metrics);
  observer_.on_step(metrics);
}

bool Trainer::is_done() const {
  const TrainingConfig& training = config_.training;
  return steps_done_ >= training.total_train_steps ||
         (training.max_tokens && tokens_done_ >= *training.max_tokens);
}

void Trainer::run_steps() {
  const int64_t eval_every = config_.training.eval_every;
  const int64_t save_every = config_.checkpoint.save_frequency;
  while (!is_done()) {
    const int64_t step = steps_done_ + 1;
    if (options_.on_step)
      options_.on_step(step);
    StepMetrics metrics = train_step(step);
    if (is_traced(step))
      write_trace();
    if (eval_every > 0 && step % eval_every == 0)
      metrics.eval_loss = evaluate();
    report(metrics);
    if (save_every > 0 && step % save_every == 0)
      save(step);
  }
  // A run that begins has nothing on disk yet, not even step 0.
  if (saved_step_ != steps_done_)
    save(steps_done_);
}

void Trainer::run() {
  observer_.on_start(
      {.config = config_,
       .rank = mesh_->rank(),
       .parameters = parameter_count(model_of(config_)),
       .tokens_per_step = tokens_per_step(config_),
       .peak_flops = peak_flops_,
       .first_step = steps_done_ + 1});
  release_freed_memory();
  const int64_t begin_ns = steady_now_ns();
  const int64_t tokens_before = tokens_done_;
  run_steps();
  RunEnd end{
      .steps = steps_done_,
      .trained_tokens = tokens_done_ - tokens_before,
      .seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9,
      .dp_cp_size = mesh_->dp_cp()->size(),
      .checkpoint = checkpoint_folder(config_) / std::to_string(steps_done_)};
  if (!trace_.empty())
    end.trace = RunFolder{config_.logging.run_dir}.trace(mesh_->rank());
  observer_.on_end(end);
}

}  // namespace

int reporting_rank(const TrainConfig& config) {
  const ParallelDims dims = config.parallel_dims();
  return dims.rank({.dp = 0, .tp = 0, .pp = dims.pp - 1, .cp = 0});
}

void run_training(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options) {
  Trainer(config, environment, options).run();
}

}  // namespace brigade
