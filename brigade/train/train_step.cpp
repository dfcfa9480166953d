#include "brigade/train/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/device_stream.h"
#include "brigade/comm/gpus.h"
#include "brigade/config/model_layout.h"
#include "brigade/data_parallel/clip_grad.h"
#include "brigade/flight/busy_time.h"
#include "brigade/metrics/clock.h"
#include "brigade/metrics/metrics.h"
#include "brigade/model/from_config.h"
#include "brigade/run/run_options.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade {
namespace {

// Follows one step on the trace's compute lane: each call of ended() closes the
// phase that began where the last one ended.
class Phases {
 public:
  Phases(Trace* trace, int64_t begin_ns) : trace_(trace), begin_ns_(begin_ns) {}
  // Adds how long it took to `time_ms`.
  int64_t ended(const char* name, double& time_ms) {
    const int64_t now_ns = steady_now_ns();
    time_ms += static_cast<double>(now_ns - begin_ns_) / 1e6;
    if (trace_)
      trace_->add({TraceLane::kCompute, name, begin_ns_, now_ns, {}});
    return begin_ns_ = now_ns;
  }

 private:
  Trace* trace_;
  int64_t begin_ns_;
};

double to_ms(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

// A sum over tokens times it is their mean; 0 of no tokens.
double mean_factor(double tokens) {
  return tokens > 0 ? 1.0 / tokens : 0;
}

// What each rank has of it, added up: exact for counts.
double sum_over(Communicator& group, double value) {
  auto sum = torch::full({1}, value, torch::kDouble);
  group.all_reduce(sum)->wait_on_host();
  return sum.item<double>();
}

StepResult::Skipped why_skipped(bool is_finite, int64_t loss_tokens) {
  if (!is_finite)
    return StepResult::Skipped::kNotFinite;
  return loss_tokens > 0 ? StepResult::Skipped::kNo
                         : StepResult::Skipped::kNothingCounts;
}

}  // namespace

std::vector<double> read_values(const torch::Tensor& values) {
  const torch::Tensor host = to_host(values);
  const auto* data = host.data_ptr<double>();
  return {data, data + host.numel()};
}

TrainStep::TrainStep(
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const TrainingData& data,
    ReadTensor read)
    : config_(config),
      mesh_(mesh),
      read_(std::move(read)),
      lr_schedule_(lr_schedule_options(config, 0, 0)),
      routers_(config_, mesh),
      batches_(data.training, config, mesh.coordinate(), mesh.device()) {
  ModelContext context = model_context(config_, mesh_);
  context.routers = routers_.record();
  const auto parts = stage_parts(config_, mesh_.coordinate());
  const auto pp = static_cast<size_t>(mesh_.dims().pp);
  for (size_t stage = static_cast<size_t>(mesh_.coordinate().pp);
       stage < parts.size();
       stage += pp) {
    stages_.push_back(std::make_unique<StageRuntime>(
        config_, context, mesh_, static_cast<int>(stage), parts[stage]));
  }
  executor_ = make_executor(training_schedule(config_), batches_);
  if (config_.distributed.rounds.local_steps > 0)
    local_ = std::make_unique<LocalTraining>(config_, mesh_, stages_);
  choose_reduction(1);
}

bool TrainStep::is_apart(int64_t step) const {
  return local_ && !local_->is_parallel(step);
}

void TrainStep::choose_reduction(int64_t step) {
  for (const auto& stage : stages_)
    stage->reduce_over(
        mesh_,
        is_apart(step) ? StageRuntime::Span::kOwnGroup
                       : StageRuntime::Span::kAllGroups);
}

bool TrainStep::is_on_cpu() const {
  return stages_.front()->model().parameters().front().is_cpu();
}

std::unique_ptr<PipelineExecutor> TrainStep::make_executor(
    Schedule schedule,
    const MicroBatches& batches) {
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
  const int64_t rows =
      config_.training.micro_batch_size *
      tokens_per_rank(config_.training.seq_length, mesh_.dims());
  options.transfers.shape = {
      config_.distributed.sequence_parallel ? rows / mesh_.dims().tp : rows,
      model_of(config_).hidden_size};
  options.transfers.dtype = stages_.front()->model().context().dtype;
  options.transfers.device = mesh_.device();
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
      [this](const Action& action, int64_t begin_ns, int64_t end_ns) {
        observe(action, begin_ns, end_ns);
      };
  return std::make_unique<PipelineExecutor>(
      std::move(schedule),
      mesh_.axis(Axis::kPp),
      std::move(stages),
      std::move(options));
}

void TrainStep::observe(
    const Action& action,
    int64_t begin_ns,
    int64_t end_ns) {
  const bool is_wait = is_communication(action.kind);
  if (is_wait)
    pipeline_wait_ns_ += end_ns - begin_ns;
  if (!trace_)
    return;
  trace_->add(
      {TraceLane::kCompute,
       fmt::format("{}{}", is_wait ? "wait for " : "", to_string(action.kind)),
       begin_ns,
       end_ns,
       {{"micro_batch", action.micro_batch}, {"stage", action.stage}}});
}

// What the micro-batches, which began at `since_ns`, waited for peers inside
// layers. Along several axes, in proportion to how long the operations of each
// were under way.
void TrainStep::divide_waits(
    const FlightRecorder& recorder,
    int64_t since_ns,
    double waited_ms,
    StepTimes& times) {
  std::vector<Axis> axes;
  for (const Axis axis : kLayerAxes) {
    if (mesh_.axis(axis)->size() > 1)
      axes.push_back(axis);
  }
  std::vector<double> busy(axes.size(), 1);
  if (axes.size() > 1) {
    const FlightRecording recording = recorder.recording("");
    for (size_t i = 0; i < axes.size(); ++i)
      busy[i] = busy_ms(recording, mesh_.axis(axes[i])->name(), since_ns);
  }
  double all_ms = std::accumulate(busy.begin(), busy.end(), 0.0);
  if (all_ms == 0) {
    busy.assign(axes.size(), 1);
    all_ms = static_cast<double>(axes.size());
  }
  for (size_t i = 0; i < axes.size(); ++i)
    times[axes[i]] = std::max(0.0, waited_ms) * busy[i] / all_ms;
}

TokenLoss TrainStep::whole_loss(
    const torch::Tensor& loss_sum,
    const MicroBatches& batches) {
  if (!is_last_stage())
    return {};
  auto total = torch::tensor(
      {read_device({loss_sum})[0], static_cast<double>(batches.loss_tokens())},
      torch::kDouble);
  mesh_.dp_cp()->all_reduce(total)->wait_on_host();
  return {
      total[0].item<double>(), static_cast<int64_t>(total[1].item<double>())};
}

std::optional<PreferenceMetrics> TrainStep::take_preference() {
  PreferenceLoss* loss =
      is_last_stage() ? stages_.back()->preference_loss() : nullptr;
  if (loss == nullptr)
    return std::nullopt;
  torch::Tensor sums = to_host(loss->take_sums());
  mesh_.dp_cp()->all_reduce(sums)->wait_on_host();
  return PreferenceLoss::means(sums);
}

std::vector<double> TrainStep::read_device(
    const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> wide;
  for (const torch::Tensor& value : tensors)
    wide.push_back(value.detach().to(torch::kDouble).flatten());
  auto values = read_(torch::cat(wide));
  for (const CommunicatorPtr& group : mesh_.all())
    group->throw_if_failed();
  return values;
}

std::pair<TrainStep::Squares, double> TrainStep::read_squares_and_loss(
    const torch::Tensor& loss_sum) {
  std::vector<torch::Tensor> scalars;
  for (const auto& stage : stages_)
    scalars.push_back(stage->sum_of_squares());
  if (is_last_stage())
    scalars.push_back(loss_sum);
  const std::vector<double> values = read_device(scalars);
  Squares squares;
  for (size_t i = 0; i < stages_.size(); ++i)
    (stages_[i]->sync().is_counted_elsewhere() ? squares.shared
                                               : squares.whole) += values[i];
  return {squares, is_last_stage() ? values.back() : 0};
}

double TrainStep::sum_over_owners(
    Communicator& replicas,
    const Squares& squares) const {
  const auto has_others = [](const std::unique_ptr<StageRuntime>& stage) {
    return stage->sync().is_counted_elsewhere();
  };
  return squares.whole +
         (std::any_of(stages_.begin(), stages_.end(), has_others)
              ? sum_over(replicas, squares.shared)
              : 0);
}

bool TrainStep::is_last_stage() const {
  return mesh_.coordinate().pp == mesh_.dims().pp - 1;
}

double TrainStep::used_memory_gb() const {
  return mesh_.device().is_cuda() ? reserved_gpu_memory_gb(mesh_.device())
                                  : resident_memory_gb();
}

// Requests take two hops, as no collective of every step is over all ranks but
// what routers sum up, which only models with experts do: the model's
// all-reduce brings a rank's request to its replica's last stage (heard_), and
// in the next step the last stages' all-reduce, together with the loss, brings
// it to all replicas, whose models then pass it on (agreed).
double TrainStep::sum_up(
    const torch::Tensor& loss_sum,
    const StepRequests& requests,
    StepResult& result) {
  const auto [squares, loss] = read_squares_and_loss(loss_sum);
  enum { kLoss, kTokens, kLastSave, kLastStop, kFromLast };
  auto last = torch::zeros({kFromLast}, torch::kDouble);
  auto* from_last = last.data_ptr<double>();
  if (is_last_stage()) {
    from_last[kLoss] = loss;
    from_last[kTokens] = static_cast<double>(batches_.loss_tokens());
    from_last[kLastSave] = heard_.save || requests.save ? 1 : 0;
    from_last[kLastStop] = heard_.stop || requests.stop ? 1 : 0;
    mesh_.dp_cp()->all_reduce(last)->wait_on_host();
  }

  // Squares are summed; what memory each rank holds goes along in a place of
  // its own, so that one collective gathers it too. One of the tp ranks of the
  // last stage, which all have its tokens, says their number.
  enum {
    kSquares,
    kBadLoss,
    kLossTokens,
    kSave,
    kStop,
    kHeardSave,
    kHeardStop,
    kMemory
  };
  const CommunicatorPtr& model = mesh_.model();
  auto total = torch::zeros({kMemory + model->size()}, torch::kDouble);
  auto* values = total.data_ptr<double>();
  values[kSquares] = sum_over_owners(*mesh_.dp_cp(), squares);
  values[kBadLoss] = std::isfinite(from_last[kLoss]) ? 0 : 1;
  values[kLossTokens] =
      mesh_.coordinate().leads_stage() ? from_last[kTokens] : 0;
  values[kSave] = from_last[kLastSave];
  values[kStop] = from_last[kLastStop];
  values[kHeardSave] = requests.save ? 1 : 0;
  values[kHeardStop] = requests.stop ? 1 : 0;
  values[kMemory + model->rank()] = used_memory_gb();
  model->all_reduce(total)->wait_on_host();
  result.loss_tokens = static_cast<int64_t>(values[kLossTokens]);
  const double grad_scale = mean_factor(values[kLossTokens]);
  if (is_last_stage())
    result.loss = result.loss_tokens > 0
                      ? from_last[kLoss] * grad_scale
                      : std::numeric_limits<double>::quiet_NaN();
  result.grad_norm = std::sqrt(values[kSquares]) * grad_scale;
  result.group_grad_norm = result.grad_norm;
  result.memory_gb =
      *std::max_element(values + kMemory, values + kMemory + model->size());
  result.skipped = why_skipped(
      std::isfinite(result.grad_norm) && values[kBadLoss] == 0,
      result.loss_tokens);
  result.agreed = {values[kSave] > 0, values[kStop] > 0};
  // What is agreed is no longer asked for.
  heard_ = {
      values[kHeardSave] > 0 && !result.agreed.save,
      values[kHeardStop] > 0 && !result.agreed.stop};
  return grad_scale;
}

// But for what routers did nothing else of a step is over several groups, so
// that all they exchange is in one small all-reduce over each rank's replicas.
double TrainStep::sum_up_groups(
    const torch::Tensor& loss_sum,
    bool apart,
    const StepRequests& requests,
    StepResult& result) {
  const auto my_tokens = static_cast<double>(batches_.loss_tokens());
  const CommunicatorPtr& reducing = apart ? mesh_.replicas() : mesh_.dp_cp();
  const double grad_scale = mean_factor(sum_over(*reducing, my_tokens));
  // Were all tokens to count. Norms of groups are compared at this scale.
  const double common_scale = (apart ? mesh_.replica_groups() : 1) /
                              static_cast<double>(tokens_per_step(config_));
  const double ratio = grad_scale / common_scale;

  enum { kSquares, kLoss, kLossTokens, kSave, kStop, kShared };
  const CommunicatorPtr& model = mesh_.model();
  auto total = torch::zeros({kShared + model->size()}, torch::kDouble);
  auto* values = total.data_ptr<double>();
  const auto [squares, loss] = read_squares_and_loss(loss_sum);
  values[kSquares] = sum_over_owners(*reducing, squares);
  const bool says_loss = is_last_stage() && mesh_.coordinate().leads_stage();
  values[kLoss] = says_loss ? loss : 0;
  values[kLossTokens] = says_loss ? my_tokens : 0;
  values[kSave] = requests.save ? 1 : 0;
  values[kStop] = requests.stop ? 1 : 0;
  values[kShared + model->rank()] = used_memory_gb();
  model->all_reduce(total)->wait_on_host();
  result.memory_gb =
      *std::max_element(values + kShared, values + kShared + model->size());
  result.group_grad_norm = std::sqrt(values[kSquares]) * grad_scale;
  values[kSquares] *= ratio * ratio;

  const CommunicatorPtr& replicas = mesh_.dp_cp();
  auto shared = total.narrow(0, 0, kShared).clone();
  replicas->all_reduce(shared)->wait_on_host();
  values = shared.data_ptr<double>();
  result.grad_norm =
      std::sqrt(values[kSquares] / replicas->size()) * common_scale;
  result.loss_tokens = static_cast<int64_t>(values[kLossTokens]);
  result.loss = values[kLoss] / values[kLossTokens];
  result.skipped = why_skipped(
      std::isfinite(result.grad_norm) && std::isfinite(values[kLoss]),
      result.loss_tokens);
  result.agreed = {values[kSave] > 0, values[kStop] > 0};
  return grad_scale;
}

std::string TrainStep::describe_non_finite(const StepResult& result) const {
  if (!result.routers.problem.empty())
    return result.routers.problem;
  std::string name;
  for (const auto& stage : stages_) {
    if (name.empty())
      name = stage->first_non_finite();
  }
  std::string what = fmt::format("the loss is {}", result.loss);
  if (!name.empty())
    what = fmt::format("the gradient of '{}' is not finite", name);
  else if (std::isfinite(result.loss))
    what = "a gradient of another stage or group is not finite";
  return fmt::format("{} on rank {}", what, mesh_.rank());
}

void TrainStep::fail_not_finite(int64_t step, const StepResult& result) {
  const NumericError error(fmt::format(
      "[trainer] step {}: {}; nothing was updated. Lower "
      "training.learning_rate, set training.grad_clip, or continue from an "
      "earlier checkpoint with checkpoint.load_path",
      step,
      describe_non_finite(result)));
  // All ranks are here: nothing stays under way between them.
  for (const auto& stage : stages_)
    stage->stepper().skip_step();
  throw error;
}

// Not in the first step of a start, whose buckets may be planned again by what
// it sees.
std::optional<GradientNotes> TrainStep::rehearse_if_due(int64_t step) {
  const int64_t every = config_.training.check_gradients_every;
  if (++runs_ == 1 || every == 0 || step % every != 0)
    return std::nullopt;
  GradientNotes notes = rehearse();
  for (const auto& stage : stages_)
    stage->treat_buckets(StageRuntime::Buckets::kNotedAndReduced);
  pipeline_wait_ns_ = 0;
  return notes;
}

GradientNotes TrainStep::rehearse() {
  for (const auto& stage : stages_) {
    stage->treat_buckets(StageRuntime::Buckets::kNoted);
    stage->hold_reduction();
  }
  executor_->run();
  GradientNotes notes;
  for (const auto& stage : stages_) {
    stage->end_rehearsal();
    if (stage->preference_loss() != nullptr)
      stage->preference_loss()->take_sums();
    for (auto& note : stage->take_notes())
      notes.push_back(std::move(note));
  }
  return notes;
}

void TrainStep::check_gradients(int64_t step, const GradientNotes& rehearsed) {
  GradientNotes used;
  for (const auto& stage : stages_) {
    stage->treat_buckets(StageRuntime::Buckets::kReduced);
    for (auto& note : stage->take_notes())
      used.push_back(std::move(note));
  }
  const std::string unlike = find_unlike_gradient(rehearsed, used);
  Communicator& world = *mesh_.world();
  if (Agreement(world).max(unlike.empty() ? 0 : 1) == 0)
    return;
  for (const auto& stage : stages_)
    stage->stepper().skip_step();
  const GradientNotes again = rehearse();
  fail_with_unlike_gradients(step, {unlike, rehearsed, used, again}, world);
}

void TrainStep::add_to(Trace& trace, int64_t step, const StepResult& result)
    const {
  for (const auto& stage : stages_)
    trace.add(stage->sync().report(), stage->stage());
  trace.add(
      {TraceLane::kCompute,
       fmt::format("step {}", step),
       result.begin_ns,
       result.end_ns,
       {{"loss", result.loss}}});
}

StepResult
TrainStep::run(int64_t step, Trace* trace, const StepRequests& requests) {
  StepResult result;
  result.begin_ns = steady_now_ns();
  Phases phases(trace, result.begin_ns);
  pipeline_wait_ns_ = 0;
  choose_reduction(step);
  batches_.load_step();
  StepTimes& times = result.times;
  phases.ended("load micro-batches", times.data_ms);
  const std::optional<GradientNotes> rehearsed = rehearse_if_due(step);
  if (rehearsed)
    phases.ended("rehearsal", times.compute_ms);
  for (const auto& stage : stages_)
    stage->hold_reduction();
  routers_.clear();
  trace_ = trace;
  const FlightRecorderPtr recorder = mesh_.world()->options().flight_recorder;
  const int64_t since_ns = steady_now_ns();
  const int64_t waited_before_ns = recorder ? recorder->waited_ns() : 0;
  const torch::Tensor loss_sum = executor_->run();
  trace_ = nullptr;
  phases.ended("micro-batches", times.compute_ms);
  times[Axis::kPp] = to_ms(pipeline_wait_ns_);
  if (recorder)
    divide_waits(
        *recorder,
        since_ns,
        to_ms(recorder->waited_ns() - waited_before_ns) - times[Axis::kPp],
        times);
  times.compute_ms -=
      std::accumulate(times.axis_ms.begin(), times.axis_ms.end(), 0.0);
  for (const auto& stage : stages_)
    stage->finish_gradients(mesh_);
  if (rehearsed)
    check_gradients(step, *rehearsed);
  phases.ended("finish gradients", times.gradients_ms);

  result.routers = routers_.sum_up(
      [this](const auto& tensors) { return read_device(tensors); });
  double grad_scale =
      local_ ? sum_up_groups(loss_sum, is_apart(step), requests, result)
             : sum_up(loss_sum, requests, result);
  result.preference = take_preference();
  if (result.skipped == StepResult::Skipped::kNotFinite &&
      config_.training.on_non_finite != OnNonFinite::kSkip)
    fail_not_finite(step, result);
  // A group that trains apart may have no token that counts where others do.
  const bool updates =
      result.skipped == StepResult::Skipped::kNo && grad_scale > 0;
  phases.ended("loss and norm", times.norm_ms);
  if (config_.training.grad_clip > 0)
    grad_scale *=
        clip_factor(result.group_grad_norm, config_.training.grad_clip);
  result.lr = learning_rate(lr_schedule_, step);
  // On all ranks, also on those whose group has nothing to learn from.
  if (result.skipped == StepResult::Skipped::kNo)
    routers_.learn(result.routers.learned, stages_);
  result.exposed_ns = pipeline_wait_ns_;
  for (const auto& stage : stages_) {
    result.exposed_ns += stage->sync().report().exposed_ns();
    if (updates)
      stage->stepper().step(result.lr, grad_scale);
    else
      stage->stepper().skip_step();
    if (result.skipped == StepResult::Skipped::kNotFinite)
      stage->wire_memory().drop_errors();
  }
  result.end_ns = phases.ended("optimizer", times.optimizer_ms);
  if (local_) {
    result.exposed_ns += local_->after_step(step);
    result.left_out = local_->left_out();
    result.end_ns = phases.ended("exchange between groups", times.gradients_ms);
  }
  // Before a checkpoint of this step is saved.
  choose_reduction(step + 1);
  if (trace)
    add_to(*trace, step, result);
  return result;
}

}  // namespace brigade
