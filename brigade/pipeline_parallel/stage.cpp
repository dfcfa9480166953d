#include "brigade/pipeline_parallel/stage.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {

PipelineStage::PipelineStage(
    int stage,
    int stages,
    StageForward forward,
    std::shared_ptr<WeightGradientQueue> weight_gradients)
    : stage_(stage),
      stages_(stages),
      forward_(std::move(forward)),
      weight_gradients_(std::move(weight_gradients)) {
  BRIGADE_ASSERT(stage >= 0 && stage < stages, "stage {} of {}", stage, stages);
}

torch::Tensor PipelineStage::forward(
    int micro_batch,
    const torch::Tensor& input) {
  BRIGADE_ASSERT(
      live_.count(micro_batch) == 0,
      "micro-batch {} is live on stage {}",
      micro_batch,
      stage_);
  const torch::AutoGradMode with_gradients(true);
  Live live;
  if (!is_first())
    live.input = input.detach().set_requires_grad(true);
  torch::Tensor output = forward_(micro_batch, live.input);
  if (output.requires_grad())
    live.root = torch::autograd::impl::gradient_edge(output);
  else if (!is_first())
    throw UsageError(fmt::format(
        "[pipeline_parallel] the output of stage {} does not depend on its "
        "input: no gradient would reach stage {}",
        stage_,
        stage_ - 1));
  live_.emplace(micro_batch, std::move(live));
  return output.detach();
}

torch::Tensor PipelineStage::evaluate(
    int micro_batch,
    const torch::Tensor& input) {
  const torch::NoGradGuard no_gradients;
  return forward_(micro_batch, input);
}

torch::Tensor PipelineStage::backward(
    int micro_batch,
    const torch::Tensor& output_gradient) {
  Live& live = find(micro_batch, false);
  torch::Tensor gradient = run_backward(live, output_gradient);
  live_.erase(micro_batch);
  return gradient;
}

torch::Tensor PipelineStage::backward_input(
    int micro_batch,
    const torch::Tensor& output_gradient) {
  Live& live = find(micro_batch, false);
  torch::Tensor gradient;
  if (weight_gradients_ != nullptr) {
    weight_gradients_->start_deferring();
    try {
      gradient = run_backward(live, output_gradient);
    } catch (...) {
      weight_gradients_->take();  // or later backwards would be deferred too
      throw;
    }
    live.deferred = weight_gradients_->take();
  } else {
    gradient = run_backward(live, output_gradient);
  }
  live.weights_due = true;
  // The closures of the weight half hold all that it needs.
  live.input.reset();
  live.root = {};
  return gradient;
}

void PipelineStage::backward_weight(int micro_batch) {
  Live& live = find(micro_batch, true);
  const torch::NoGradGuard no_gradients;
  for (WeightGradientQueue::Work& work : live.deferred) {
    work();
    work = nullptr;  // frees its activation before the next one runs
  }
  live_.erase(micro_batch);
}

PipelineStage::Live& PipelineStage::find(int micro_batch, bool weights_due) {
  const auto found = live_.find(micro_batch);
  BRIGADE_ASSERT(
      found != live_.end() && found->second.weights_due == weights_due,
      "micro-batch {} on stage {}",
      micro_batch,
      stage_);
  return found->second;
}

torch::Tensor PipelineStage::run_backward(
    Live& live,
    const torch::Tensor& gradient) {
  if (!live.root.is_valid())
    return {};  // the first stage of a model whose first weights are frozen
  // What torch::autograd::backward() does, from the root alone: the output
  // itself is gone.
  torch::autograd::Engine::get_default_engine().execute(
      {live.root},
      {gradient},
      /*keep_graph=*/false,
      /*create_graph=*/false,
      /*accumulate_grad=*/true);
  if (!live.input.defined())
    return {};
  torch::Tensor input_gradient = live.input.grad();
  if (!input_gradient.defined())
    throw UsageError(fmt::format(
        "[pipeline_parallel] no gradient reached the input of stage {}",
        stage_));
  live.input.mutable_grad().reset();
  return input_gradient.contiguous();
}

}  // namespace brigade
