#include "brigade/train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/comm/agreement.h"
#include "brigade/config/model_layout.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/metrics/clock.h"
#include "brigade/metrics/metrics.h"
#include "brigade/metrics/prometheus.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/model/from_config.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/resume_check.h"
#include "brigade/run/run_options.h"
#include "brigade/train/held_out_evaluation.h"
#include "brigade/train/peak_rate.h"
#include "brigade/train/replica_check.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/run_saver.h"
#include "brigade/train/start_world.h"
#include "brigade/train/straggler_watch.h"
#include "brigade/train/train_step.h"
#include "brigade/train/training_record.h"
#include "brigade/train/wire_checkpoint.h"

namespace brigade {
namespace {

class Trainer {
 public:
  Trainer(
      const TrainConfig& config,
      const LaunchEnvironment& environment,
      const TrainingOptions& options)
      : config_(config),
        options_(options),
        flight_recorder_(std::make_shared<FlightRecorder>(environment.rank)),
        record_(config_, environment, options.observer, options.origins),
        observer_(record_.observer()) {
    mesh_ = start_world(
        config,
        environment,
        {.store = options.store,
         .flight_recorder = flight_recorder_,
         .prepare =
             [&] {
               TrainingDataOptions data =
                   training_data_options(config_, scan_options());
               data.on_tokenize = [this](const TextTokensProgress& progress) {
                 observer_.on_progress(
                     {.what = "tokenizing dataset.text",
                      .done = progress.bytes_read,
                      .total = progress.total_bytes});
               };
               data_ = open_training_data(data);
               if (environment.rank == 0)
                 take_folders();
             },
         .datasets = data_names(config_),
         .shared_folder = [&] { return checkpoint_folder(config_); }});
    const Agreement agreement(*mesh_->world());
    config_.logging.run_dir = agreement.text_of(0, config_.logging.run_dir);
    config_.checkpoint.save_dir =
        agreement.text_of(0, config_.checkpoint.save_dir);
    if (record_.reports())
      check_prometheus_file(config_.logging);
    step_ = std::make_unique<TrainStep>(config_, *mesh_, data_);
    if (data_.packing)
      observer_.on_message(
          "packed " + describe(*data_.packing, config_.dataset.long_documents));
    if (data_.held_out) {
      evaluation_ = std::make_unique<HeldOutEvaluation>(
          config_,
          *mesh_,
          *step_,
          data_,
          HeldOutEvaluation::Hooks{
              .on_batch = [this] { watchdog_->begin_step(position_.steps); },
              .wants_stop =
                  [this] {
                    take_requests();
                    return wanted_.stop;
                  }});
      const std::string shorter = describe_short_evaluation(
          config_, data_.held_out->samples_per_epoch());
      if (!shorter.empty())
        observer_.on_message(shorter);
    }
    saver_ =
        std::make_unique<RunSaver>(config_, *mesh_, *step_, data_, observer_);
    if (options_.kill_grace)
      saver_->set_kill_grace(*options_.kill_grace);
    stragglers_ = std::make_unique<StragglerWatch>(*mesh_);
    resume();
    using Access = PeakRateCache::Access;
    peak_flops_ = peak_flops(
        torch::dtype(scalar_type(config_.model.dtype)).device(mesh_->device()),
        environment.local_world_size,
        {options_.cache_dir,
         record_.reports() ? Access::kReadAndWrite : Access::kRead});
  }

  // Any failure in it leaves this rank's recording in the run folder.
  TrainingResult run() {
    options_.watchdog.step_timeout =
        std::chrono::seconds(config_.training.step_timeout_seconds);
    watchdog_ = std::make_unique<StepWatchdog>(
        flight_recorder_,
        RunFolder{config_.logging.run_dir}.flight(),
        options_.watchdog);
    try {
      return run_to_end();
    } catch (const std::exception& error) {
      // The event first: a supervisor may kill this rank once it knows.
      record_.on_failure(error.what());
      watchdog_->write_recording(error.what());
      throw;
    }
  }

 private:
  TrainingResult run_to_end() {
    observer_.on_start(
        {.config = config_,
         .run = saver_->run(),
         .rank = mesh_->rank(),
         .parameters = parameter_count(model_of(config_)),
         .tokens_per_step = tokens_per_step(config_),
         .device = step_->is_on_cpu() ? "CPU" : "GPU",
         .peak_flops = peak_flops_,
         .first_step = position_.steps + 1,
         .last_step = last_step_});
    ops::release_freed_memory();
    const int64_t begin_ns = steady_now_ns();
    const int64_t tokens_before = position_.tokens;
    run_steps();
    const TrainingEnd end =
        is_done() ? TrainingEnd::kFinished : TrainingEnd::kStopped;
    observer_.on_end(
        {.end = end,
         .steps = position_.steps,
         .trained_tokens = position_.tokens - tokens_before,
         .seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9,
         .replicas = mesh_->replicas()->size(),
         .checkpoint =
             checkpoint_folder(config_) / std::to_string(position_.steps),
         .trace = record_.trace_path()});
    // The event of the end is part of the record too.
    record_.throw_if_unwritten(*mesh_->world(), position_.steps);
    const int64_t signal =
        Agreement(*mesh_->world()).max(int64_t{wanted_.stop_signal});
    return {end, static_cast<int>(signal)};
  }

  StepMetrics train_step(int64_t step) {
    const int64_t waited_before_ns = flight_recorder_->waited_ns();
    const StepResult result = step_->run(step, record_.trace_of(step), asks());
    const int64_t waited_ns = flight_recorder_->waited_ns() - waited_before_ns;
    for (const std::string& line : result.left_out)
      observer_.on_message(fmt::format("step {}: {}", step, line));
    StepMetrics metrics;
    if (config_.run.report_overlap) {
      for (const auto& stage : step_->stages())
        metrics.reports.push_back(stage->sync().report());
    }
    const int64_t tokens = tokens_per_step(config_);
    position_.tokens += tokens;
    position_.samples += tokens / config_.training.seq_length;
    position_.steps = step;
    agreed_ = result.agreed;
    const double seconds =
        static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
    longest_step_seconds_ = std::max(longest_step_seconds_, seconds);
    count_skipped(result);
    look_for_stragglers(step, seconds - static_cast<double>(waited_ns) / 1e9);
    metrics.step = step;
    metrics.loss = result.loss;
    metrics.preference = result.preference;
    if (!config_.training.loss.is_of_pairs() &&
        (data_.counting_tokens || data_.packing || result.loss_tokens < tokens))
      metrics.loss_tokens = result.loss_tokens;
    metrics.lr = result.lr;
    metrics.grad_norm = result.grad_norm;
    metrics.tokens = position_.tokens;
    metrics.skipped_steps = position_.skipped_steps;
    metrics.tokens_per_second = static_cast<double>(tokens) / seconds;
    metrics.tokens_per_second_per_device =
        metrics.tokens_per_second / mesh_->world()->size();
    metrics.experts = result.routers.layers;
    const double dropped =
        flops_per_choice(config_) *
        static_cast<double>(worst_of(metrics.experts).dropped);
    const double flops =
        metrics.tokens_per_second_per_device *
        (flops_per_token(config_) - dropped / static_cast<double>(tokens));
    // A machine that was busy while its rate was measured is faster than that.
    peak_flops_ = std::max(peak_flops_, flops);
    metrics.mfu = 100 * flops / peak_flops_;
    metrics.memory_gb = result.memory_gb;
    metrics.step_ms = seconds * 1e3;
    metrics.times = result.times;
    metrics.exposed_comm_ms = static_cast<double>(result.exposed_ns) / 1e6;
    return metrics;
  }

  TokenScanOptions scan_options() {
    return {
        .cache_dir = options_.cache_dir,
        .on_progress = [this](const TokenScanProgress& scan) {
          observer_.on_progress(
              {.what = "checking the token ids of " + scan.path,
               .done = scan.done_tokens,
               .total = scan.total_tokens,
               .unit = RunProgress::Unit::kTokens});
        }};
  }

  // Before there are peers, on rank 0: the folders, and that they are ours.
  void take_folders() {
    number_run_folder(config_);
    check_run_folder(config_);
    check_checkpoint_folder(config_, checkpoint_bytes(config_));
    run_lock_ = lock_run_folder(config_);
    checkpoint_lock_ = lock_checkpoint_folder(config_);
    const auto folder = checkpoint_folder(config_);
    // Later nothing would show which of them belong to this run.
    if (config_.checkpoint.load_path.empty() && !config_.run.overwrite &&
        has_held_checkpoints(folder)) {
      throw ConfigError(fmt::format(
          "/checkpoint/save_dir: '{}' already holds checkpoints of a run; "
          "continue it with checkpoint.load_path, choose another "
          "checkpoint.save_dir, or replace them with --overwrite",
          folder.string()));
    }
    for (const std::string& line : clean_up_saves(folder))
      observer_.on_message(line);
  }

  // The checkpoint that the run continues, if any, and metrics.jsonl up to it.
  void resume() {
    Communicator& world = *mesh_->world();
    const auto checkpoint =
        find_checkpoint_to_continue(config_, world, observer_);
    LoadedRun loaded;
    // What is saved says it too, so that it holds over any number of resumes.
    if (!config_.training.lr_end)
      config_.training.lr_end =
          checkpoint ? saved_lr_end(*checkpoint) : LrEnd::kAfterLastStep;
    if (checkpoint)
      check_resume(*checkpoint, config_, data_, observer_);
    // A run that is refused above has changed nothing.
    if (mesh_->rank() == 0)
      open_run_folder(config_);
    world.barrier();
    if (checkpoint) {
      loaded = load_run(*checkpoint, *step_);
      const std::string lost_errors = load_wire_parts(
          Checkpoint(*checkpoint), config_, *mesh_, step_->stages());
      position_ = loaded.position;
      step_->seek_sample(position_.samples);
      set_aside_others(loaded);
      observer_.on_message(
          fmt::format("continuing '{}'", checkpoint->string()));
      report_lost_state(loaded, lost_errors);
    }
    last_step_ = last_step(config_, position_.steps, position_.tokens);
    step_->set_lr_schedule(
        lr_schedule_options(config_, position_.steps, position_.tokens));
    // A run that begins has nothing on disk yet, not even step 0.
    saver_->begin_run(loaded.run, checkpoint ? position_.steps : -1);
    if (record_.reports())
      record_.open(loaded.run, position_.steps, checkpoint);
  }

  // Says what the checkpoint that is continued does not have.
  void report_lost_state(
      const LoadedRun& loaded,
      const std::string& lost_errors) {
    if (!loaded.has_groups)
      observer_.on_message(fmt::format(
          "the checkpoint does not have {} groups: each begins a new round "
          "with the checkpoint's weights and the mean of its moments",
          mesh_->replica_groups()));
    if (loaded.unmerged_steps > 0)
      observer_.on_message(fmt::format(
          "what the checkpoint's groups learned in their last {} steps was not "
          "merged and is dropped: the run goes on with the common weights",
          loaded.unmerged_steps));
    if (!loaded.other_optimizer.empty())
      observer_.on_message(fmt::format(
          "the checkpoint has the states of {}: those of {} are initialised",
          loaded.other_optimizer,
          to_string(config_.training.optimizer.kind)));
    if (!lost_errors.empty())
      observer_.on_message(fmt::format(
          "what compressed gradients lost before the checkpoint is dropped "
          "({}): losses differ a little from those of an undisturbed run",
          lost_errors));
  }

  // Collective, once a checkpoint that the user named is loaded.
  void set_aside_others(const LoadedRun& loaded) {
    // "auto" continues the newest valid one.
    if (config_.checkpoint.load_path == "auto")
      return;
    const auto folder = checkpoint_folder(config_);
    std::string steps;
    if (mesh_->rank() == 0) {
      steps = fmt::format(
          "{}",
          fmt::join(
              set_aside_other_checkpoints(
                  folder, loaded.position.steps, loaded.run),
              ", "));
    }
    steps = Agreement(*mesh_->world()).text_of(0, steps);
    if (steps.empty())
      return;
    observer_.on_message(fmt::format(
        "set aside in '{}': {}, which do not come before step {} of this run; "
        "remove <step>.set-aside when nobody needs it",
        folder.string(),
        steps,
        loaded.position.steps));
  }

  // What this rank asks for in the next step: until it is agreed. A save, once
  // the one before it has ended.
  StepRequests asks() {
    take_requests();
    return {
        .save = (wanted_.save && !saver_->is_saving()) ||
                saver_->needs_another_save(),
        .stop = wanted_.stop};
  }

  void take_requests() {
    StepRequests now;
    if (options_.requests)
      now = options_.requests();
    wanted_.save = wanted_.save || now.save || saver_->asks_for_save();
    wanted_.stop = wanted_.stop || now.stop || time_is_over() ||
                   !record_.unwritten().empty();
    if (wanted_.stop_signal == 0)
      wanted_.stop_signal = now.stop_signal;
  }

  // Whether the job's time limit leaves no time for more steps and a save.
  bool time_is_over() const {
    if (!options_.end_time)
      return false;
    constexpr double kReserveSeconds = 30;
    const double needed = kReserveSeconds + 3 * saver_->longest_seconds() +
                          3 * longest_step_seconds_;
    return static_cast<double>(*options_.end_time - ::time(nullptr)) <= needed;
  }

  // train_step(), after which no save is lost even if it fails.
  StepMetrics run_step(int64_t step) {
    try {
      return train_step(step);
    } catch (const NumericError&) {
      // Which all ranks throw: what is being saved is still good.
      saver_->wait();
      throw;
    }
  }

  void count_skipped(const StepResult& result) {
    using Skipped = StepResult::Skipped;
    if (result.skipped != Skipped::kNo)
      ++position_.skipped_steps;
    if (result.skipped == Skipped::kNothingCounts) {
      observer_.on_message(fmt::format(
          "step {} updated nothing: no token of its {} counts in the loss",
          position_.steps,
          tokens_per_step(config_)));
      return;
    }
    const bool is_bad = result.skipped == Skipped::kNotFinite;
    skipped_in_a_row_ = is_bad ? skipped_in_a_row_ + 1 : 0;
    if (!is_bad)
      return;
    observer_.on_message(fmt::format(
        "step {} was skipped: its loss or a gradient is not finite{}",
        position_.steps,
        result.routers.problem.empty() ? "" : ": " + result.routers.problem));
  }

  bool has_skipped_too_many() const {
    return skipped_in_a_row_ >= config_.training.max_skipped_steps;
  }

  // Which all ranks throw: what is being saved is still good.
  void fail_after_skips() {
    if (!has_skipped_too_many())
      return;
    saver_->wait();
    throw NumericError(fmt::format(
        "[trainer] steps {} to {}: a loss or gradient was not finite in {} "
        "steps in a row (training.max_skipped_steps); nothing was updated in "
        "them. Lower training.learning_rate, or continue from an earlier "
        "checkpoint with checkpoint.load_path",
        position_.steps - skipped_in_a_row_ + 1,
        position_.steps,
        skipped_in_a_row_));
  }

  // Collective in some steps.
  void look_for_stragglers(int64_t step, double busy_seconds) {
    // An exchange that goes on beside the steps waits for peers too, and the
    // recorded waits do not say which thread waited.
    if (config_.distributed.rounds.delay > 0)
      return;
    for (const std::string& line : stragglers_->add_step(step, busy_seconds))
      observer_.on_message(line);
  }

  bool is_done() const { return position_.steps >= last_step_; }

  // A request may be agreed one step after it was made (TrainStep::sum_up).
  // Right after a save it may be older or newer than that one: all ranks ask
  // again, once the save has ended.
  void save_if_due(int64_t step) {
    if (!saver_->is_due(step) && !agreed_.save)
      return;
    take_requests();
    const bool is_late =
        !saver_->is_due(step) && saver_->started_step() == step - 1;
    wanted_.save = is_late;
    if (!is_late)
      saver_->save(position_);
  }

  void run_steps() {
    const int64_t eval_every = config_.training.eval_every;
    while (!is_done() && !agreed_.stop) {
      const int64_t step = position_.steps + 1;
      watchdog_->begin_step(step);
      StepMetrics metrics = run_step(step);
      record_.keep_trace(step);
      if (eval_every > 0 && step % eval_every == 0 && !agreed_.stop &&
          !has_skipped_too_many())
        agreed_.stop = evaluation_->run(metrics);
      record_.add_step(metrics, last_step_);
      fail_after_skips();
      const int64_t check_every = config_.training.check_replicas_every;
      if (check_every > 0 && step % check_every == 0) {
        for (const auto& stage : step_->stages())
          check_replicas(stage->params(), step, check_every);
      }
      saver_->poll();
      // The last step is saved below, without a copy.
      const bool is_last = is_done() || agreed_.stop;
      if (!is_last)
        save_if_due(step);
    }
    watchdog_->end_steps();
    if (agreed_.stop && !is_done())
      observer_.on_message(fmt::format(
          "asked to stop: step {} is the last, and is saved now",
          position_.steps));
    saver_->save_last(position_);
    record_.throw_if_unwritten(*mesh_->world(), position_.steps);
  }

  TrainConfig config_;
  TrainingOptions options_;
  FlightRecorderPtr flight_recorder_;
  std::unique_ptr<ProcessMesh> mesh_;
  TrainingData data_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<HeldOutEvaluation> evaluation_;  // null: nothing held out
  // Rank 0's.
  std::unique_ptr<FolderLock> run_lock_;
  std::unique_ptr<FolderLock> checkpoint_lock_;
  std::unique_ptr<RunSaver> saver_;
  RunPosition position_;
  int64_t last_step_ = 0;
  StepRequests wanted_;  // by this rank
  StepRequests agreed_;
  int64_t skipped_in_a_row_ = 0;
  double longest_step_seconds_ = 0;
  std::unique_ptr<StragglerWatch> stragglers_;
  double peak_flops_ = 1;  // of this rank
  std::unique_ptr<StepWatchdog> watchdog_;
  TrainingRecord record_;
  RunObserver& observer_;  // record_'s
};

}  // namespace

TrainingResult run_training(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options) {
  return Trainer(config, environment, options).run();
}

}  // namespace brigade
