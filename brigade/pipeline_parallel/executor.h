// Runs a schedule on live tensors: one rank's row of the table, action after
// action, without decisions of its own.
//
// A step ends without a barrier: a rank that is done with its row goes on to
// the optimizer. Receives are waited for when their tensor is needed, sends a
// few computations later or at the end of the step, which lets their tensors
// go.
//
// Life: made on every rank of the pipeline with the same schedule; run() is
// called on all of them, once per step, on one thread each.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/pipeline_parallel/p2p.h"
#include "brigade/pipeline_parallel/stage.h"
#include "brigade/schedule/schedule.h"

namespace brigade {

// What holds when a stage's gradient reduction may start.
enum class GradientState {
  // The last backward of the stage runs next: each gradient is final once its
  // hook runs in it, so buckets can be launched as they fill.
  kLastBackwardBegins,
  // The last weight half has run: every gradient of the stage is final.
  kComplete,
};

struct ExecutorCallbacks {
  // Given by the trainer. Called once per step for every stage of this rank.
  std::function<void(int stage, GradientState)> reduce_gradients;
  // Called after each computation (start to end of it) and for each receive and
  // each send that was waited for (start to end of the wait: exposed
  // communication). Steady-clock nanoseconds. May be empty.
  std::function<void(const Action&, int64_t start_ns, int64_t end_ns)> observe;
};

struct ExecutorOptions {
  TransferOptions transfers;
  ExecutorCallbacks callbacks;
};

class PipelineExecutor {
 public:
  // `stages`: those of this rank, in ascending order. Throws UsageError when
  // validate() finds something in the schedule, or when ranks or stages do not
  // match it.
  PipelineExecutor(
      Schedule schedule,
      CommunicatorPtr pp,
      std::vector<std::shared_ptr<PipelineStage>> stages,
      ExecutorOptions options);

  const Schedule& schedule() const { return schedule_; }

  // One step over all micro-batches. `loss_gradient` is what backward starts
  // from. The trainer's is 1, which the decoder's head insists on: gradients
  // are those of the summed loss, and the optimizer multiplies them by 1 /
  // tokens. Gradients are accumulated into what is there. Returns the sum of
  // the micro-batches' losses, fp32, on the rank of the last stage; an
  // undefined tensor on the others. Does not wait for it. Throws CommError when
  // a peer is lost, naming stage, micro-batch and direction; the step is then
  // void.
  torch::Tensor run(double loss_gradient = 1.0);

  // Most micro-batches that the stages of this rank held at once during the
  // latest run, summed over them: the simulator's peak_live_activations.
  int peak_live_activations() const { return peak_live_; }

 private:
  // Results of stages that no action has taken yet, by the kind of their send;
  // also for stages on one rank, which need no send.
  using MadeKey = std::tuple<ActionKind, int, int>;

  void carry_out(const Action& action, double loss_gradient);
  void forward(const Action& action);
  void backward(const Action& action, double loss_gradient);
  void reduce(const Action& action);
  torch::Tensor input_of(const Action& action, double loss_gradient);
  torch::Tensor take_made(ActionKind send, int stage, int micro_batch);
  PipelineStage& stage(int stage) const;
  void observe(const Action& action, int64_t start_ns) const;
  void wait_due_sends();
  void note_live();

  Schedule schedule_;
  CommunicatorPtr pp_;
  std::vector<std::shared_ptr<PipelineStage>> stages_;
  ExecutorCallbacks callbacks_;
  torch::Device device_;
  StageTransfers transfers_;
  std::map<MadeKey, torch::Tensor> made_;
  torch::Tensor loss_;
  int peak_live_ = 0;
};

}  // namespace brigade
