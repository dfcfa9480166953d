// One optimizer step on this rank: its stages, its data, and the schedule that
// runs them. What the trainer repeats, and what the bucket tuner measures.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/token_loss.h"
#include "brigade/data/training_data.h"
#include "brigade/metrics/metrics.h"
#include "brigade/metrics/trace.h"
#include "brigade/pipeline_parallel/executor.h"
#include "brigade/schedule/lr_schedule.h"
#include "brigade/train/gradient_check.h"
#include "brigade/train/local_training.h"
#include "brigade/train/micro_batches.h"
#include "brigade/train/router_balance.h"
#include "brigade/train/stage_runtime.h"
#include "brigade/train/step_requests.h"

namespace brigade {

struct StepResult {
  double loss = 0;  // mean over the tokens that count; NaN: none does
  // Those tokens, of the global batch; with a loss of pairs, the pairs.
  int64_t loss_tokens = 0;
  // Before clipping; of several groups the root of the mean square.
  double grad_norm = 0;
  // With a loss of pairs, on ranks of the last stage.
  std::optional<PreferenceMetrics> preference;
  double group_grad_norm = 0;  // of this rank's group, which clipping limits
  double lr = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Waited for gradients, for the pipeline's neighbours and for other groups.
  int64_t exposed_ns = 0;
  StepTimes times;
  // Resident, or of a GPU: the most of the ranks that hold this replica (tp x
  // pp).
  double memory_gb = 0;
  // Why nothing was updated, the same on all ranks.
  enum class Skipped {
    kNo,
    kNotFinite,      // the loss or a gradient
    kNothingCounts,  // no token of the batch has a loss
  };
  Skipped skipped = Skipped::kNo;
  RouterUse routers;
  // Why groups were left out of an exchange, a line each (LocalTraining).
  std::vector<std::string> left_out = {};
  // What any rank asked for, the same on all ranks: in this step's run(), or,
  // on ranks that are not of the last stage, in the one before.
  StepRequests agreed;
};

// What the host reads of a device: the values of a tensor. A step does it once,
// between its backwards and its update, and once more for what its routers
// noted.
using ReadTensor = std::function<std::vector<double>(const torch::Tensor&)>;
// Waits for the device; values: float64, flat.
std::vector<double> read_values(const torch::Tensor& values);

class TrainStep {
 public:
  // Collective over the mesh: initial weights, then buckets. `mesh` must
  // outlive it. The model is on the mesh's device.
  TrainStep(
      const TrainConfig& config,
      const ProcessMesh& mesh,
      const TrainingData& data,
      ReadTensor read = read_values);
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // Replaces the config's schedule, which is that of a run from step 0.
  void set_lr_schedule(const LrScheduleOptions& schedule) {
    lr_schedule_ = schedule;
  }
  // The next step's global batch begins with `sample`.
  void seek_sample(int64_t sample) { batches_.seek_sample(sample); }
  // Collective. With training.check_gradients_every, throws an Error that names
  // rank and parameter where a gradient came out differently when it was
  // computed again. Step `step`, counted from 1; its spans are added to `trace`
  // unless that is nullptr. When the loss or a gradient is not finite, nothing
  // is updated: throws NumericError, or with training.on_non_finite = "skip"
  // says so. `requests` are this rank's, until they are agreed; they travel
  // with the loss and the norm.
  StepResult
  run(int64_t step, Trace* trace = nullptr, const StepRequests& requests = {});

  // An executor over this rank's stages that reads `batches`, which must
  // outlive it.
  std::unique_ptr<PipelineExecutor> make_executor(
      Schedule schedule,
      const MicroBatches& batches);
  // On every rank of the last stage: the sum of `loss_sum` and of the tokens
  // of `batches` that it is over, over all ranks. Elsewhere nothing.
  TokenLoss whole_loss(
      const torch::Tensor& loss_sum,
      const MicroBatches& batches);

  // Collective over the last stage's dp_cp(). With a loss of pairs, on every
  // rank of the last stage: means over the pairs of all ranks since the last
  // call. Elsewhere nothing.
  std::optional<PreferenceMetrics> take_preference();

  // Whether the weights are in the host's memory.
  bool is_on_cpu() const;
  Stages& stages() { return stages_; }
  RouterBalance& routers() { return routers_; }
  // Null without low-communication training.
  LocalTraining* local() { return local_.get(); }

 private:
  bool is_apart(int64_t step) const;
  // Over which ranks step `step` sums its gradients.
  void choose_reduction(int64_t step);
  // With training.check_gradients_every, in the steps that it names.
  std::optional<GradientNotes> rehearse_if_due(int64_t step);
  // The step's micro-batches, whose gradients are noted and dropped.
  GradientNotes rehearse();
  // Collective. Holds buckets that were reduced against `rehearsed`.
  void check_gradients(int64_t step, const GradientNotes& rehearsed);
  void divide_waits(
      const FlightRecorder& recorder,
      int64_t since_ns,
      double waited_ms,
      StepTimes& times);
  void observe(const Action& action, int64_t begin_ns, int64_t end_ns);
  // read_ of all elements, after which no failed operation goes unnoticed.
  std::vector<double> read_device(const std::vector<torch::Tensor>& tensors);
  // Sums of squares of this rank's stages: of those whose replicas count
  // unlike parts, and of those that each counts whole.
  struct Squares {
    double shared = 0;
    double whole = 0;
  };
  // With the loss, which is 0 before the last stage.
  std::pair<Squares, double> read_squares_and_loss(
      const torch::Tensor& loss_sum);
  // What all of this rank's stages come to. Collective over `replicas` where
  // they count unlike parts.
  double sum_over_owners(Communicator& replicas, const Squares& squares) const;
  void add_to(Trace& trace, int64_t step, const StepResult& result) const;
  bool is_last_stage() const;
  double used_memory_gb() const;
  // Collective over the last stage's dp_cp(), then over model(): the loss and
  // its tokens, grad_norm, memory_gb, agreed and whether all is finite. Losses
  // and gradients are sums over tokens, a step's are their means: returns the
  // factor of the gradients, 0 where no token counts.
  double sum_up(
      const torch::Tensor& loss_sum,
      const StepRequests& requests,
      StepResult& result);
  // The same with groups that train apart, whose gradients `apart` says to be
  // sums over their own tokens: over each group, over tp x pp, then over all
  // replicas.
  double sum_up_groups(
      const torch::Tensor& loss_sum,
      bool apart,
      const StepRequests& requests,
      StepResult& result);
  [[noreturn]] void fail_not_finite(int64_t step, const StepResult& result);
  // What this rank knows of, for a message.
  std::string describe_non_finite(const StepResult& result) const;

  const TrainConfig config_;
  const ProcessMesh& mesh_;
  ReadTensor read_;
  LrScheduleOptions lr_schedule_;
  RouterBalance routers_;
  Stages stages_;
  std::unique_ptr<LocalTraining> local_;
  MicroBatches batches_;
  std::unique_ptr<PipelineExecutor> executor_;
  // What this rank's replica of the model asked for in the last step, and all
  // others have not heard of yet.
  StepRequests heard_;
  int64_t runs_ = 0;  // of steps, by this object
  // About the step under way:
  int64_t pipeline_wait_ns_ = 0;
  Trace* trace_ = nullptr;
};

}  // namespace brigade
