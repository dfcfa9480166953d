#include "brigade/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "brigade/base/clock.h"
#include "brigade/base/error.h"
#include "brigade/model/llama_config.h"
#include "brigade/optim/lr_schedule.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/train/layout.h"
#include "brigade/train/metrics.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/open_data.h"
#include "brigade/train/peak_rate.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/run_folder.h"
#include "brigade/train/stage_runtime.h"
#include "brigade/train/start_world.h"

namespace brigade {
namespace {

LrScheduleOptions lr_options(const TrainingConfig& training) {
  LrScheduleOptions options;
  if (training.lr_schedule == "cosine")
    options.decay = LrDecay::kCosine;
  else if (training.lr_schedule == "linear")
    options.decay = LrDecay::kLinear;
  else if (training.lr_schedule == "wsd")
    options.decay = LrDecay::kWsd;
  options.peak = training.learning_rate;
  options.minimum = training.min_learning_rate;
  options.warmup_steps = training.warmup_steps;
  options.decay_steps = training.decay_steps;
  options.total_steps = training.total_train_steps;
  return options;
}

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
  // On every rank of the last stage: the sum of `loss_sum` over all tokens of
  // the step. Elsewhere 0.
  double whole_loss(const torch::Tensor& loss_sum);
  double gradient_norm(double grad_scale);
  [[noreturn]] void fail_not_finite(int64_t step, double loss);
  void save(int64_t step);
  void report(const StepMetrics& metrics);
  bool reports() const { return mesh_->rank() == reporting_rank(config_); }
  bool is_last_stage() const {
    return mesh_->coordinate().pp == mesh_->dims().pp - 1;
  }
  std::unique_ptr<PipelineExecutor> make_executor(
      Schedule schedule,
      MicroBatches& batches);

  TrainConfig config_;
  TrainingOptions options_;
  std::unique_ptr<ProcessMesh> mesh_;
  TrainingData data_;
  std::vector<std::unique_ptr<StageRuntime>> stages_;
  std::unique_ptr<MicroBatches> batches_;
  std::unique_ptr<MicroBatches> held_out_;
  std::unique_ptr<PipelineExecutor> executor_;
  std::unique_ptr<PipelineExecutor> evaluator_;
  int64_t steps_done_ = 0;
  int64_t tokens_done_ = 0;
  int64_t pipeline_wait_ns_ = 0;  // of the step under way
  double peak_flops_ = 0;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<ProgressBar> bar_;
};

Trainer::Trainer(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options)
    : config_(config), options_(options) {
  // What can fail without peers fails before there are any.
  data_ = open_training_data_of(config_);
  if (environment.rank == 0) {
    number_run_folder(config_);
    check_run_folder(config_);
  }
  mesh_ = start_world(config, environment);
  config_.logging.run_dir =
      from_rank_0(config_.logging.run_dir, *mesh_->world());
  config_.checkpoint.save_dir =
      from_rank_0(config_.checkpoint.save_dir, *mesh_->world());
  if (mesh_->rank() == 0)
    open_run_folder(config_);
  mesh_->world()->barrier();
  if (reports()) {
    metrics_ = std::make_unique<MetricsFile>(
        RunFolder{config_.logging.run_dir}.metrics());
  }

  const std::vector<ModelPart> parts = stage_parts(config_);
  const auto pp = static_cast<size_t>(mesh_->dims().pp);
  for (size_t stage = static_cast<size_t>(mesh_->coordinate().pp);
       stage < parts.size();
       stage += pp) {
    stages_.push_back(std::make_unique<StageRuntime>(
        config_,
        model_of(config_),
        *mesh_,
        static_cast<int>(stage),
        parts[stage]));
  }
  batches_ = std::make_unique<MicroBatches>(
      data_.training, config_, mesh_->coordinate());
  executor_ = make_executor(training_schedule(config_), *batches_);
  if (data_.held_out) {
    held_out_ = std::make_unique<MicroBatches>(
        data_.held_out, config_, mesh_->coordinate());
    evaluator_ = make_executor(evaluation_schedule(config_), *held_out_);
  }
  if (!config_.checkpoint.load_path.empty()) {
    const RunPosition position = load_run(config_, stages_);
    steps_done_ = position.steps;
    tokens_done_ = position.tokens;
    batches_->seek(steps_done_);
  }
  peak_flops_ = peak_flops(
      config_.model.dtype == ModelDtype::kBfloat16 ? torch::kBFloat16
                                                   : torch::kFloat,
      environment.is_local_leader() ? options_.cache_dir
                                    : std::filesystem::path());
  bar_ = std::make_unique<ProgressBar>(
      config_.training.total_train_steps,
      reports() && environment.is_terminal ? ProgressBar::Visible::kYes
                                           : ProgressBar::Visible::kNo);
}

std::unique_ptr<PipelineExecutor> Trainer::make_executor(
    Schedule schedule,
    MicroBatches& batches) {
  std::vector<std::shared_ptr<PipelineStage>> stages;
  for (const auto& runtime : stages_) {
    stages.push_back(std::make_shared<PipelineStage>(
        runtime->stage(),
        schedule.stages(),
        [&model = runtime->model(), &batches](
            int micro_batch, const torch::Tensor& input) {
          return model.forward(
              batches[micro_batch], input, batches.positions());
        },
        runtime->weight_gradients()));
  }
  ExecutorOptions options;
  const int64_t rows = config_.training.micro_batch_size *
                       config_.training.seq_length /
                       config_.distributed.cp_size;
  options.transfers.shape = {
      config_.distributed.sequence_parallel ? rows / mesh_->dims().tp : rows,
      model_of(config_).hidden_size};
  options.transfers.dtype = stages_.front()->model().context().dtype;
  options.callbacks.reduce_gradients = [this](int stage, GradientState state) {
    for (const auto& runtime : stages_) {
      if (runtime->stage() != stage)
        continue;
      if (state == GradientState::kLastBackwardBegins)
        runtime->begin_reduction();
      else
        runtime->reduce_now();
    }
  };
  options.callbacks.observe =
      [this](const Action& action, int64_t start_ns, int64_t end_ns) {
        if (is_communication(action.kind))
          pipeline_wait_ns_ += end_ns - start_ns;
      };
  return std::make_unique<PipelineExecutor>(
      std::move(schedule),
      mesh_->axis(Axis::kPp),
      std::move(stages),
      std::move(options));
}

double Trainer::whole_loss(const torch::Tensor& loss_sum) {
  if (!is_last_stage())
    return 0;
  auto total = loss_sum.detach().to(torch::kDouble).view({1});
  mesh_->dp_cp()->all_reduce(total)->wait();
  return total.item<double>();
}

double Trainer::gradient_norm(double grad_scale) {
  double local = 0;
  for (const auto& stage : stages_)
    local += stage->sum_of_squares();
  auto total = torch::full({1}, local, torch::kDouble);
  mesh_->model()->all_reduce(total)->wait();
  return std::sqrt(total.item<double>()) * grad_scale;
}

void Trainer::fail_not_finite(int64_t step, double loss) {
  std::string name;
  for (const auto& stage : stages_) {
    if (name.empty())
      name = stage->first_non_finite();
  }
  throw NumericError(fmt::format(
      "[trainer] step {}: {} on rank {}; nothing was updated. Lower "
      "training.learning_rate, set training.grad_clip, or continue from an "
      "earlier checkpoint with checkpoint.load_path",
      step,
      name.empty()
          ? (std::isfinite(loss)
                 ? std::string("a gradient of another stage is not finite")
                 : fmt::format("the loss is {}", loss))
          : fmt::format("the gradient of '{}' is not finite", name),
      mesh_->rank()));
}

StepMetrics Trainer::train_step(int64_t step) {
  const int64_t begin_ns = steady_now_ns();
  pipeline_wait_ns_ = 0;
  batches_->load_step();
  for (const auto& stage : stages_)
    stage->hold_reduction();
  const torch::Tensor loss_sum = executor_->run();
  for (const auto& stage : stages_)
    stage->finish_gradients(*mesh_);

  // Losses and gradients are sums over tokens; a step's are their means.
  const int64_t tokens = tokens_per_step(config_);
  double grad_scale = 1.0 / static_cast<double>(tokens);
  const double loss = whole_loss(loss_sum) * grad_scale;
  const double norm = gradient_norm(grad_scale);
  if (!std::isfinite(norm) || !std::isfinite(loss))
    fail_not_finite(step, loss);
  if (config_.training.grad_clip > 0)
    grad_scale *= std::min(1.0, config_.training.grad_clip / (norm + 1e-6));
  const double lr = learning_rate(lr_options(config_.training), step);
  StepMetrics metrics;
  int64_t exposed_ns = pipeline_wait_ns_;
  for (const auto& stage : stages_) {
    exposed_ns += stage->sync().report().exposed_ns();
    if (config_.run.report_overlap)
      metrics.reports.push_back(stage->sync().report());
    stage->step(lr, grad_scale);
  }

  tokens_done_ += tokens;
  steps_done_ = step;
  const double seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
  const LlamaConfig& llama = model_of(config_);
  metrics.step = step;
  metrics.loss = loss;
  metrics.lr = lr;
  metrics.grad_norm = norm;
  metrics.tokens = tokens_done_;
  metrics.tokens_per_second = static_cast<double>(tokens) / seconds;
  metrics.tokens_per_second_per_device =
      metrics.tokens_per_second / mesh_->world()->size();
  metrics.mfu = 100 * metrics.tokens_per_second_per_device *
                flops_per_token(
                    static_cast<double>(parameter_count(llama)),
                    llama.num_hidden_layers,
                    llama.hidden_size,
                    config_.training.seq_length) /
                peak_flops_;
  metrics.memory_gb = resident_memory_gb();
  metrics.step_ms = seconds * 1e3;
  metrics.exposed_comm_ms = static_cast<double>(exposed_ns) / 1e6;
  return metrics;
}

double Trainer::evaluate() {
  const torch::NoGradGuard no_grad;
  held_out_->seek(0);
  double total = 0;
  for (int64_t i = 0; i < config_.training.eval_steps; ++i) {
    held_out_->load_step();
    total += whole_loss(evaluator_->run());
  }
  return total / static_cast<double>(
                     config_.training.eval_steps * tokens_per_step(config_));
}

void Trainer::save(int64_t step) {
  const auto path = checkpoint_folder(config_) / std::to_string(step);
  save_run(path, config_, *mesh_, stages_, {step, tokens_done_});
  if (reports()) {
    bar_->clear();
    fmt::print("saved {}\n", path.string());
  }
}

void Trainer::report(const StepMetrics& metrics) {
  if (!reports())
    return;
  metrics_->write(metrics);
  bar_->clear();
  std::string line = log_line(
      metrics,
      {mesh_->rank(), tokens_per_step(config_), config_.training.max_tokens});
  if (metrics.eval_loss)
    line += fmt::format(" | Eval loss: {:6.4f}", *metrics.eval_loss);
  fmt::print("{}\n", line);
  std::fflush(stdout);
  bar_->draw(metrics.step);
}

void Trainer::run() {
  const TrainingConfig& training = config_.training;
  if (reports()) {
    const LlamaConfig& llama = model_of(config_);
    fmt::print(
        "{} parameters in {}, {}; {} tokens a step over {} rank{}; MFU against "
        "the measured {} product rate of {:.0f} GFLOP/s a rank\n",
        readable(static_cast<double>(parameter_count(llama))),
        to_string(config_.model.dtype),
        config_.parallel_dims().product(),
        tokens_per_step(config_),
        mesh_->world()->size(),
        mesh_->world()->size() == 1 ? "" : "s",
        to_string(config_.model.dtype),
        peak_flops_ / 1e9);
    if (steps_done_ > 0)
      fmt::print("continuing after step {}\n", steps_done_);
    std::fflush(stdout);
  }
  const int64_t begin_ns = steady_now_ns();
  const int64_t tokens_before = tokens_done_;
  int64_t saved_step = steps_done_;
  StepMetrics last;
  const auto is_done = [&] {
    return steps_done_ >= training.total_train_steps ||
           (training.max_tokens && tokens_done_ >= *training.max_tokens);
  };
  while (!is_done()) {
    const int64_t step = steps_done_ + 1;
    if (options_.on_step)
      options_.on_step(step);
    StepMetrics metrics = train_step(step);
    if (training.eval_every > 0 && step % training.eval_every == 0)
      metrics.eval_loss = evaluate();
    report(metrics);
    last = std::move(metrics);
    if (config_.checkpoint.save_frequency > 0 &&
        step % config_.checkpoint.save_frequency == 0) {
      save(step);
      saved_step = step;
    }
  }
  if (saved_step != steps_done_)
    save(steps_done_);
  if (!reports())
    return;
  bar_->clear();
  if (tokens_done_ == tokens_before) {
    fmt::print(
        "nothing to do: the checkpoint is at step {} of {}; raise "
        "training.total_train_steps to go on\n",
        steps_done_,
        training.total_train_steps);
    return;
  }
  for (const SyncReport& report : last.reports) {
    fmt::print(
        "\nstep {}: what communication cost, by bucket\n{}",
        last.step,
        report.table(mesh_->dp_cp()->size()));
  }
  const double seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
  const auto checkpoint =
      checkpoint_folder(config_) / std::to_string(steps_done_);
  fmt::print(
      "\nfinal loss {:.4f} after {} steps, {:.0f} tokens/s\n"
      "  metrics     {}\n"
      "  checkpoint  {}\n"
      "next: brigade generate --checkpoint {} --prompt \"Once\"\n",
      last.loss,
      steps_done_,
      static_cast<double>(tokens_done_ - tokens_before) / seconds,
      RunFolder{config_.logging.run_dir}.metrics().string(),
      checkpoint.string(),
      checkpoint.string());
  std::fflush(stdout);
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
