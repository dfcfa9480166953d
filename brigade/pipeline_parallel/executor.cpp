#include "brigade/pipeline_parallel/executor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

Schedule checked(
    Schedule schedule,
    const Communicator& pp,
    const std::vector<std::shared_ptr<PipelineStage>>& stages) {
  std::vector<std::string> problems;
  for (const std::string& problem : validate(schedule))
    problems.push_back(
        fmt::format("[pipeline_parallel] {}: {}", schedule.name, problem));
  if (pp.size() != schedule.ranks)
    problems.push_back(fmt::format(
        "[pipeline_parallel] {} is a schedule of {} ranks, but group '{}' has "
        "{}",
        schedule.name,
        schedule.ranks,
        pp.name(),
        pp.size()));
  std::vector<int> wanted;
  for (int stage = pp.rank(); stage < schedule.stages();
       stage += schedule.ranks)
    wanted.push_back(stage);
  std::vector<int> given;
  for (const auto& stage : stages)
    given.push_back(stage->stage());
  if (given != wanted)
    problems.push_back(fmt::format(
        "[pipeline_parallel] rank {} was given the stages [{}], but {} puts "
        "[{}] there",
        pp.rank(),
        fmt::join(given, ", "),
        schedule.name,
        fmt::join(wanted, ", ")));
  if (!problems.empty())
    throw UsageError(problems);
  return schedule;
}

}  // namespace

PipelineExecutor::PipelineExecutor(
    Schedule schedule,
    CommunicatorPtr pp,
    std::vector<std::shared_ptr<PipelineStage>> stages,
    ExecutorOptions options)
    : schedule_(checked(std::move(schedule), *pp, stages)),
      pp_(std::move(pp)),
      stages_(std::move(stages)),
      callbacks_(std::move(options.callbacks)),
      device_(options.transfers.device),
      transfers_(pp_, schedule_, std::move(options.transfers)) {
  pp_->connect_ring();
}

torch::Tensor PipelineExecutor::run(double loss_gradient) {
  made_.clear();
  loss_.reset();
  peak_live_ = 0;
  for (const auto& one : stages_)
    one->reset();
  for (const Action& action :
       schedule_.per_rank[static_cast<size_t>(pp_->rank())]) {
    if (!is_computation(action.kind)) {
      carry_out(action, loss_gradient);
      continue;
    }
    wait_due_sends();
    carry_out(action, loss_gradient);
    transfers_.computation_done();
  }
  transfers_.wait_sends();
  BRIGADE_ASSERT(made_.empty(), "{} tensors were not taken", made_.size());
  return loss_;
}

void PipelineExecutor::carry_out(const Action& action, double loss_gradient) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(action, loss_gradient);
    case ActionKind::kBackwardWeight: {
      const int64_t start_ns = steady_now_ns();
      stage(action.stage).backward_weight(action.micro_batch);
      return observe(action, start_ns);
    }
    case ActionKind::kSendActivation:
    case ActionKind::kSendGradient:
      return transfers_.post_send(
          action, take_made(action.kind, action.stage, action.micro_batch));
    case ActionKind::kRecvActivation:
    case ActionKind::kRecvGradient:
      return transfers_.post_recv(action);
    case ActionKind::kReduceGradients:
      return reduce(action);
  }
}

void PipelineExecutor::forward(const Action& action) {
  PipelineStage& here = stage(action.stage);
  const torch::Tensor input = input_of(action, 0);
  const int64_t start_ns = steady_now_ns();
  torch::Tensor output = schedule_.passes == Passes::kForwardOnly
                             ? here.evaluate(action.micro_batch, input)
                             : here.forward(action.micro_batch, input);
  observe(action, start_ns);
  note_live();
  if (!here.is_last()) {
    made_[{ActionKind::kSendActivation, action.stage, action.micro_batch}] =
        std::move(output);
    return;
  }
  BRIGADE_ASSERT(
      output.numel() == 1, "the loss has {} elements", output.numel());
  // Sums over tokens, added in the order of the table; no item(), which would
  // wait for the device.
  const torch::Tensor loss = output.detach().to(torch::kFloat).reshape({});
  loss_ = loss_.defined() ? loss_ + loss : loss;
}

void PipelineExecutor::backward(const Action& action, double loss_gradient) {
  PipelineStage& here = stage(action.stage);
  const torch::Tensor gradient = input_of(action, loss_gradient);
  const int64_t start_ns = steady_now_ns();
  torch::Tensor input_gradient =
      action.kind == ActionKind::kBackward
          ? here.backward(action.micro_batch, gradient)
          : here.backward_input(action.micro_batch, gradient);
  observe(action, start_ns);
  if (!here.is_first())
    made_[{ActionKind::kSendGradient, action.stage, action.micro_batch}] =
        std::move(input_gradient);
}

void PipelineExecutor::reduce(const Action& action) {
  if (!callbacks_.reduce_gradients)
    return;
  // validate(): every backward of the stage is behind us, or one whole backward
  // is all that is left, whose micro-batch is then alive.
  const bool complete = stage(action.stage).live() == 0;
  callbacks_.reduce_gradients(
      action.stage,
      complete ? GradientState::kComplete : GradientState::kLastBackwardBegins);
}

torch::Tensor PipelineExecutor::input_of(
    const Action& action,
    double loss_gradient) {
  const bool is_forward = action.kind == ActionKind::kForward;
  const PipelineStage& here = stage(action.stage);
  if (is_forward && here.is_first())
    return {};
  if (!is_forward && here.is_last())
    return torch::scalar_tensor(
        loss_gradient, torch::TensorOptions(torch::kFloat).device(device_));
  const int from = is_forward ? action.stage - 1 : action.stage + 1;
  if (schedule_.rank_of(from) == pp_->rank())
    return take_made(
        is_forward ? ActionKind::kSendActivation : ActionKind::kSendGradient,
        from,
        action.micro_batch);
  const Action recv{
      is_forward ? ActionKind::kRecvActivation : ActionKind::kRecvGradient,
      action.stage,
      action.micro_batch};
  const int64_t start_ns = steady_now_ns();
  torch::Tensor tensor = transfers_.wait_recv(recv);
  observe(recv, start_ns);
  return tensor;
}

torch::Tensor
PipelineExecutor::take_made(ActionKind send, int stage, int micro_batch) {
  const auto found = made_.find({send, stage, micro_batch});
  BRIGADE_ASSERT(
      found != made_.end(),
      "nothing to {} for micro-batch {} on stage {}",
      to_string(send),
      micro_batch,
      stage);
  torch::Tensor tensor = std::move(found->second);
  made_.erase(found);
  return tensor;
}

PipelineStage& PipelineExecutor::stage(int stage) const {
  return *stages_[static_cast<size_t>(stage / schedule_.ranks)];
}

void PipelineExecutor::observe(const Action& action, int64_t start_ns) const {
  if (callbacks_.observe)
    callbacks_.observe(action, start_ns, steady_now_ns());
}

void PipelineExecutor::wait_due_sends() {
  while (const std::optional<Action> send = transfers_.due_send()) {
    const int64_t start_ns = steady_now_ns();
    transfers_.wait_oldest_send();
    observe(*send, start_ns);
  }
}

void PipelineExecutor::note_live() {
  int live = 0;
  for (const auto& one : stages_)
    live += one->live();
  peak_live_ = std::max(peak_live_, live);
}

}  // namespace brigade
