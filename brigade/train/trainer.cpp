#include "brigade/train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/median.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/comm/agreement.h"
#include "brigade/config/model_layout.h"
#include "brigade/data/token_loss.h"
#include "brigade/files/file.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/launch/network.h"
#include "brigade/metrics/clock.h"
#include "brigade/metrics/expert_use.h"
#include "brigade/metrics/loss_spikes.h"
#include "brigade/metrics/metrics.h"
#include "brigade/metrics/prometheus.h"
#include "brigade/metrics/run_folder.h"
#include "brigade/metrics/tfevents.h"
#include "brigade/metrics/trace.h"
#include "brigade/model/from_config.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/run/checkpoint_folder.h"
#include "brigade/run/resume_check.h"
#include "brigade/run/run_options.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/peak_rate.h"
#include "brigade/train/recorded_run.h"
#include "brigade/train/replica_check.h"
#include "brigade/train/run_checkpoint.h"
#include "brigade/train/run_saver.h"
#include "brigade/train/start_world.h"
#include "brigade/train/stragglers.h"
#include "brigade/train/train_step.h"
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
        spikes_(config.training.loss_spike_limit),
        trace_(environment.rank),
        recorded_(options.observer, environment, options.origins),
        observer_(
            environment.rank == reporting_rank(config) ? recorded_ : silent_) {
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
    if (reports())
      check_prometheus_file(config_.logging);
    step_ = std::make_unique<TrainStep>(config_, *mesh_, data_);
    if (data_.packing)
      observer_.on_message(
          "packed " + describe(*data_.packing, config_.dataset.long_documents));
    if (data_.held_out) {
      held_out_ = make_evaluation(data_.held_out);
      const std::string shorter = describe_short_evaluation(
          config_, data_.held_out->samples_per_epoch());
      if (!shorter.empty())
        observer_.on_message(shorter);
      if (config_.dataset.eval_parts && data_.parts.size() > 1) {
        for (const TrainingPart& part : data_.parts)
          held_out_parts_.push_back(make_evaluation(part.held_out));
      }
    }
    saver_ =
        std::make_unique<RunSaver>(config_, *mesh_, *step_, data_, observer_);
    if (options_.kill_grace)
      saver_->set_kill_grace(*options_.kill_grace);
    resume();
    using Access = PeakRateCache::Access;
    peak_flops_ = peak_flops(
        torch::dtype(scalar_type(config_.model.dtype)).device(mesh_->device()),
        environment.local_world_size,
        {options_.cache_dir,
         reports() ? Access::kReadAndWrite : Access::kRead});
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
      recorded_.on_failure(error.what());
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
    RunEnd end{
        .end = is_done() ? TrainingEnd::kFinished : TrainingEnd::kStopped,
        .steps = position_.steps,
        .trained_tokens = position_.tokens - tokens_before,
        .seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9,
        .dp_cp_size = mesh_->dp_cp()->size(),
        .checkpoint =
            checkpoint_folder(config_) / std::to_string(position_.steps)};
    if (!trace_.empty())
      end.trace = RunFolder{config_.logging.run_dir}.trace(mesh_->rank());
    observer_.on_end(end);
    // The event of the end is part of the record too.
    throw_if_unwritten();
    const int64_t signal =
        Agreement(*mesh_->world()).max(int64_t{wanted_.stop_signal});
    return {end.end, static_cast<int>(signal)};
  }

  StepMetrics train_step(int64_t step) {
    const int64_t waited_before_ns = flight_recorder_->waited_ns();
    const StepResult result =
        step_->run(step, is_traced(step) ? &trace_ : nullptr, asks());
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

  // Held-out samples, and what computes their loss.
  struct Evaluation {
    MicroBatches batches;
    std::unique_ptr<PipelineExecutor> executor;
    int64_t steps;  // of one evaluation
  };
  std::unique_ptr<Evaluation> make_evaluation(
      std::shared_ptr<const SampleSource> source) {
    const int64_t steps =
        evaluation_steps(config_, source->samples_per_epoch());
    std::unique_ptr<Evaluation> evaluation(new Evaluation{
        MicroBatches(
            std::move(source), config_, mesh_->coordinate(), mesh_->device()),
        nullptr,
        steps});
    evaluation->executor =
        step_->make_executor(evaluation_schedule(config_), evaluation->batches);
    return evaluation;
  }

  // The loss over global batches of held-out samples, on ranks of the last
  // stage; the same samples every time and under every layout. Where a rank
  // asked the run to stop meanwhile, agreed_ says so on all; std::nullopt where
  // that was before the last batch.
  std::optional<TokenLoss> evaluate(Evaluation& held_out) {
    const torch::NoGradGuard no_grad;
    held_out.batches.seek_sample(0);
    for (const auto& stage : step_->stages())
      stage->show_averages();
    TokenLoss total;
    // Read a batch later, so that no stage waits for those behind it.
    auto asked = torch::zeros({1}, torch::kDouble);
    WorkPtr asking = make_completed_work();
    for (int64_t i = 0; i < held_out.steps && !agreed_.stop; ++i) {
      watchdog_->begin_step(position_.steps);
      held_out.batches.load_step();
      const TokenLoss loss =
          step_->whole_loss(held_out.executor->run(), held_out.batches);
      total.nats += loss.nats;
      total.tokens += loss.tokens;
      asking->wait_on_host();
      agreed_.stop = asked.item<double>() > 0;
      take_requests();
      asked = torch::full({1}, wanted_.stop ? 1.0 : 0.0, torch::kDouble);
      asking = mesh_->world()->all_reduce(asked);
    }
    // What the last batch learns ends only what follows it.
    const bool is_whole = !agreed_.stop;
    asking->wait_on_host();
    agreed_.stop = agreed_.stop || asked.item<double>() > 0;
    for (const auto& stage : step_->stages())
      stage->hide_averages();
    return is_whole ? std::optional(total) : std::nullopt;
  }

  void evaluate_all(StepMetrics& metrics) {
    const auto loss = evaluate(*held_out_);
    if (loss && loss->tokens > 0)
      metrics.eval_loss = loss->mean();
    if (loss)
      metrics.eval_preference = step_->take_preference();
    for (size_t i = 0; i < held_out_parts_.size() && !agreed_.stop; ++i) {
      const auto of_part = evaluate(*held_out_parts_[i]);
      if (of_part && of_part->tokens > 0)
        metrics.part_eval_losses.emplace_back(
            data_.parts[i].path, of_part->mean());
    }
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
    if (!reports())
      return;
    const RunFolder folder{config_.logging.run_dir};
    if (const auto aside = set_aside_other_run(folder, loaded.run);
        !aside.empty())
      observer_.on_message(fmt::format(
          "'{}' held the record of another run, which is in '{}' now",
          folder.path.string(),
          aside.string()));
    recorded_.open(folder.events());
    const auto metrics = folder.metrics();
    MetricsFile::cut_back(metrics, position_.steps);
    if (checkpoint && config_.training.loss_spike_limit > 0)
      recall_losses(metrics, *checkpoint);
    metrics_ = std::make_unique<MetricsFile>(metrics);
    const LoggingConfig& logging = config_.logging;
    if (!logging.tensorboard && !logging.use_wandb)
      return;
    events_ = std::make_unique<TfEventsFile>(
        logging.run_dir, host_name(), position_.steps + 1);
    if (logging.use_wandb)
      observer_.on_message(fmt::format(
          "logging.use_wandb: nothing is uploaded while training; afterwards, "
          "wandb sync {}",
          logging.run_dir));
  }

  // What a loss is held against to be a spike: the steps before the checkpoint
  // that is continued, of this run folder or of the one that it lies in.
  void recall_losses(
      const std::filesystem::path& metrics,
      const std::filesystem::path& checkpoint) {
    auto losses = read_losses(metrics, position_.steps);
    if (losses.empty())
      losses = read_losses(
          RunFolder{checkpoint.parent_path().parent_path()}.metrics(),
          position_.steps);
    for (const double loss : losses)
      spikes_.add(loss);
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
    wanted_.stop =
        wanted_.stop || now.stop || time_is_over() || !unwritten().empty();
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

  // Collective, once in StragglerDetector::kSteps steps: names ranks that
  // compute longer than their peers.
  void look_for_stragglers(int64_t step, double busy_seconds) {
    Communicator& world = *mesh_->world();
    // An exchange that goes on beside the steps waits for peers too, and the
    // recorded waits do not say which thread waited.
    if (world.size() == 1 || config_.distributed.rounds.delay > 0)
      return;
    if (!stragglers_) {
      std::vector<int> stages;
      for (int rank = 0; rank < world.size(); ++rank)
        stages.push_back(mesh_->dims().coordinate(rank).pp);
      stragglers_ = std::make_unique<StragglerDetector>(std::move(stages));
    }
    busy_seconds_.push_back(busy_seconds);
    if (step % StragglerDetector::kSteps != 0)
      return;
    std::vector<int64_t> busy_ns(static_cast<size_t>(world.size()), 0);
    busy_ns[static_cast<size_t>(world.rank())] = static_cast<int64_t>(
        1e9 * std::max(0.0, upper_median(std::exchange(busy_seconds_, {}))));
    busy_ns = Agreement(world).max(busy_ns);
    for (const Straggler& straggler :
         stragglers_->add_window({busy_ns.begin(), busy_ns.end()})) {
      observer_.on_message(fmt::format(
          "{} is slow: in the last {} steps it computed {:.1f} times as long "
          "as {}, who wait for it",
          world.options().member_names[static_cast<size_t>(straggler.rank)],
          StragglerDetector::kSteps * StragglerDetector::kWindows,
          straggler.ratio,
          straggler.is_alone ? "the ranks of other pipeline stages (it may "
                               "have more to compute, or be slow)"
                             : "its peers"));
    }
  }

  // Collective over the replicas. Throws an Error that names the ranks whose
  // weights or moments differ.
  void check_replicas() {
    for (const auto& stage : step_->stages()) {
      for (const auto& [ranks, tensors] : stage->params().replicas())
        check_replicas(*ranks, tensors);
    }
  }

  void check_replicas(Communicator& ranks, const std::vector<State>& tensors) {
    const auto unlike = find_unlike_replica(tensors, ranks);
    if (!unlike)
      return;
    std::vector<std::string> names;
    for (const int rank : unlike->ranks)
      names.push_back(ranks.options().member_names[static_cast<size_t>(rank)]);
    throw Error(
        ExitCode::kUnexpected,
        fmt::format(
            "[trainer] step {}: '{}' is no longer the same on all its "
            "replicas; {} {}. Memory that fails does that: check that host, "
            "and continue from a checkpoint of before step {}",
            position_.steps,
            unlike->name,
            fmt::join(names, " and "),
            names.size() == 1 ? "differs" : "differ",
            position_.steps - config_.training.check_replicas_every + 1));
  }

  void report(const StepMetrics& metrics) {
    for (const std::string& message :
         idle_experts_.add(metrics.step, metrics.experts))
      observer_.on_message(message);
    if (metrics_) {
      const bool is_shown =
          is_logged(metrics, config_.logging.log_frequency, last_step_);
      keep_record([&] {
        metrics_->write(
            metrics,
            is_shown ? rows_in_line(
                           metrics.experts,
                           metrics.step / config_.logging.log_frequency)
                     : ExpertRows::kLeaveOut);
      });
    }
    if (events_)
      keep_record([&] { events_->write(metrics); });
    const LoggingConfig& logging = config_.logging;
    if (reports() && !logging.prometheus_file.empty() &&
        is_logged(metrics, logging.log_frequency, last_step_))
      keep_record([&] {
        write_text_file(
            logging.prometheus_file,
            prometheus_text(metrics, logging.run_name));
      });
    observer_.on_step(metrics);
    if (const auto score = spikes_.add(metrics.loss)) {
      observer_.on_message(fmt::format(
          "step {}: the loss {:.4f} is a spike, {:.1f} standard deviations "
          "above the mean of those before it",
          metrics.step,
          metrics.loss,
          *score));
    }
  }

  // Writes something of the run besides checkpoints. Where that fails, the run
  // goes on to where all ranks save and stop.
  void keep_record(const std::function<void()>& write) {
    try {
      write();
    } catch (const StorageError& error) {
      unwritten_ = error.what();
    }
  }

  // Why something of it is missing; "": nothing is.
  const std::string& unwritten() const {
    return unwritten_.empty() ? recorded_.failure() : unwritten_;
  }

  // Collective. Throws StorageError where a rank could not write something.
  void throw_if_unwritten() {
    const auto texts = Agreement(*mesh_->world()).texts(unwritten());
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (!texts[rank].empty())
        throw StorageError(fmt::format(
            "[trainer] rank {}: {}; the run stopped after step {}, which is "
            "saved in '{}'",
            rank,
            texts[rank],
            position_.steps,
            checkpoint_folder(config_).string()));
    }
  }

  bool is_traced(int64_t step) const {
    const auto& steps = config_.logging.trace_steps;
    return steps && std::ranges::find(*steps, step) != steps->end();
  }

  // After each traced step: what was seen survives a run that fails later.
  void write_trace() {
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
      if (is_traced(step))
        keep_record([&] { write_trace(); });
      if (eval_every > 0 && step % eval_every == 0 && !agreed_.stop &&
          !has_skipped_too_many())
        evaluate_all(metrics);
      report(metrics);
      fail_after_skips();
      const int64_t check_every = config_.training.check_replicas_every;
      if (check_every > 0 && step % check_every == 0)
        check_replicas();
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
    throw_if_unwritten();
  }

  bool reports() const { return mesh_->rank() == reporting_rank(config_); }

  TrainConfig config_;
  TrainingOptions options_;
  FlightRecorderPtr flight_recorder_;
  std::unique_ptr<ProcessMesh> mesh_;
  TrainingData data_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<Evaluation> held_out_;  // null: nothing is held out
  // One for each part of a mixture, with dataset.eval_parts.
  std::vector<std::unique_ptr<Evaluation>> held_out_parts_;
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
  std::vector<double> busy_seconds_;  // of the steps since the last look
  std::unique_ptr<StragglerDetector> stragglers_;
  LossSpikes spikes_;
  IdleExperts idle_experts_;
  double peak_flops_ = 1;  // of this rank
  Trace trace_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<TfEventsFile> events_;  // null: not asked for
  std::unique_ptr<StepWatchdog> watchdog_;
  RecordedRun recorded_;
  std::string unwritten_;
  RunObserver silent_;
  RunObserver& observer_;  // silent_ on ranks that do not report
};

}  // namespace

TrainingResult run_training(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const TrainingOptions& options) {
  return Trainer(config, environment, options).run();
}

}  // namespace brigade
