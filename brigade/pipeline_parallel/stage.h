// A stage is one contiguous part of the model on one rank, and what it keeps
// of the micro-batches that are under way.
//
// Life of a micro-batch in a stage:
//   absent --forward()--> live --backward()----------------------> absent
//                          live --backward_input()--> weights due
//                               --backward_weight()------------> absent
// The stage keeps a live micro-batch's input and the root of its autograd
// graph, not the output: once sent, an output takes memory only if an operation
// saved it.
//
// All calls come from the thread that runs the schedule.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "brigade/schedule/weight_gradient_queue.h"

namespace brigade {

// The computation of a stage on one micro-batch.
// input: the activation of the stage before; undefined in the first stage,
// which reads its tokens by the micro-batch's number. Returns the stage's
// activation, or in the last stage the loss: a scalar, summed over the tokens
// of the micro-batch, never averaged. All activations of a pipeline have one
// shape, for a decoder [N, C] with N = B * T_local tokens ([N/tp, C] with
// sequence parallel).
using StageForward =
    std::function<torch::Tensor(int micro_batch, const torch::Tensor& input)>;

class PipelineStage {
 public:
  // `stage` of `stages` in the whole pipeline. `weight_gradients` is the queue
  // that the stage's operations were built with. Without one, or for
  // operations that do not use it, gradients of weights are computed in the
  // input half: correct, but the weight half is then empty.
  PipelineStage(
      int stage,
      int stages,
      StageForward forward,
      std::shared_ptr<WeightGradientQueue> weight_gradients = nullptr);

  int stage() const { return stage_; }
  bool is_first() const { return stage_ == 0; }
  bool is_last() const { return stage_ == stages_ - 1; }
  // Micro-batches under way.
  int live() const { return static_cast<int>(live_.size()); }

  // Runs forward with autograd and keeps the micro-batch live. Returns the
  // output, detached.
  torch::Tensor forward(int micro_batch, const torch::Tensor& input);
  // Runs forward without autograd and keeps nothing.
  torch::Tensor evaluate(int micro_batch, const torch::Tensor& input);

  // Backward through the stage; parameters' gradients arrive where their
  // hooks and .grad put them. output_gradient has the output's shape. Returns
  // the gradient of the input, contiguous; undefined in the first stage.
  torch::Tensor backward(int micro_batch, const torch::Tensor& output_gradient);
  // The same in two halves.
  torch::Tensor backward_input(
      int micro_batch,
      const torch::Tensor& output_gradient);
  void backward_weight(int micro_batch);

  // Forgets the micro-batches of a step that failed.
  void reset() { live_.clear(); }

 private:
  struct Live {
    torch::Tensor input;         // leaf; undefined in the first stage
    torch::autograd::Edge root;  // of the output; empty: nothing to learn
    bool weights_due = false;
    std::vector<WeightGradientQueue::Work> deferred;
  };

  Live& find(int micro_batch, bool weights_due);
  torch::Tensor run_backward(Live& live, const torch::Tensor& gradient);

  int stage_;
  int stages_;
  StageForward forward_;
  std::shared_ptr<WeightGradientQueue> weight_gradients_;
  std::map<int, Live> live_;  // by micro-batch
};

}  // namespace brigade
