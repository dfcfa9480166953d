// Gradient synchronisation: the gradients of one optimizer step, accumulated
// over micro-batches and summed over the ranks of a communicator.
//
// Every parameter has a main_grad (fp32, or fp64 for fp64 parameters), into
// which each micro-batch's gradient is added. The step's last backward also
// launches the collectives; finish() waits for them.
//
//   kIdle --first backward--> kAccumulating --last micro-batch--> kReducing
//     ^                            |  ^                               |
//     |                            +--+ further micro-batches         |
//     +------- reset() ------- kFinished <--------- finish() ---------+
//
// Hooks run on the thread that calls backward(); every other call comes from
// the trainer's thread, between backwards.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

struct NamedParam {
  std::string name;
  torch::Tensor tensor;
  // Of a matrix: a step's gradient leaves most rows zero, as that of an
  // embedding does whose vocabulary is large for the tokens of a step. Only a
  // hint on what to send: sums are the same.
  bool is_row_sparse = false;
};

enum class Reduction { kMean, kSum };

// What becomes of a parameter that no backward of the step reached.
enum class MissingGradient {
  kError,  // ConfigError naming it
  kZero,   // counts as zero; ranks may disagree on which are missing
};

// Where the optimizer finds the gradient after finish().
enum class GradHandover {
  // param.grad() in the parameter's dtype, the mean applied: torch::optim.
  // Every step starts from zero by itself; zero_grad() is not needed.
  kParamDtype,
  // The flat main_grads of segments(), unscaled (see grad_scale()): Brigade's
  // AdamW. param.grad() is the main_grad, also during backward, so that fused
  // ops add straight into it; whoever reads it clears it (AfterRead::kZero) or
  // calls zero_main_grads().
  kMainGrad,
};

enum class FinishMode {
  kAtEndOfBackward,  // backward() of the last micro-batch waits, as PyTorch's
  kExplicit,         // finish() waits; work may be put before it
};

struct GradSyncOptions {
  int64_t bucket_capacity_bytes = 25 * MiB;
  int64_t first_bucket_bytes = 1 * MiB;
  int64_t last_bucket_bytes = 1 * MiB;
  BucketOrder order = BucketOrder::kReverse;
  Reduction reduction = Reduction::kMean;
  MissingGradient missing_gradient = MissingGradient::kError;
  GradHandover handover = GradHandover::kParamDtype;
  FinishMode finish = FinishMode::kAtEndOfBackward;
  BucketHook hook = all_reduce_hook();
};

// A stretch of flat memory with the gradients, and in kMainGrad mode also the
// weights, of some parameters: what a flat optimizer steps over.
struct GradSegment {
  torch::Tensor main_grad;  // [numel], padding is zero
  torch::Tensor weight;     // [numel], kMainGrad only
  std::vector<BucketSlot> slots;
};

class GradSync {
 public:
  // Collective. Compares names, shapes and dtypes across ranks (CommError
  // naming the parameter and both values) and broadcasts rank 0's values.
  // Throws ConfigError when there is nothing to synchronise, a parameter is
  // wrapped already, or one is not on the communicator's device.
  GradSync(
      std::vector<NamedParam> params,
      CommunicatorPtr communicator,
      const GradSyncOptions& options);
  virtual ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  // Whether the backwards to come belong to a micro-batch that is not the
  // step's last: gradients are accumulated and nothing is launched.
  void set_accumulate_only(bool value) { accumulate_only_ = value; }
  bool accumulate_only() const { return accumulate_only_; }

  // A parameter's gradient of this backward is in main_grad. Called by the
  // hooks; by hand for a gradient that was computed outside autograd.
  void mark_ready(int param);

  // Waits for the step's collectives and hands the gradients over. A second
  // call does nothing. Throws ConfigError when no backward was synchronised or
  // a gradient is missing, CommError when a peer was lost.
  void finish();
  // Ends the step; the next backward starts anew. Implied by that backward.
  void reset();

  // What to multiply main_grad with to get the reduction that was asked for;
  // 1 unless handover is kMainGrad and reduction is kMean.
  double grad_scale() const;

  const std::vector<NamedParam>& params() const { return params_; }
  const torch::Tensor& main_grad(int param) const {
    return main_grads_[static_cast<size_t>(param)];
  }
  int param_index(const std::string& name) const;  // -1: unknown
  // What planning knows of params().
  std::vector<BucketParam> bucket_params() const;
  // Raised whenever segments() has changed (a new plan after the first step).
  int64_t layout_version() const { return layout_version_; }
  virtual const std::vector<GradSegment>& segments() const = 0;
  void zero_main_grads();

  // Uneven inputs: with it on, every step begins by counting the
  // ranks that still have data, and the mean is over those.
  void set_uneven_inputs(bool value) { uneven_inputs_ = value; }
  // Takes part in the others' steps with zeros until no rank has data.
  void shadow_until_all_joined();

  // The last finished step's communication.
  const SyncReport& report() const { return report_; }
  const CommunicatorPtr& communicator() const { return communicator_; }
  const GradSyncOptions& options() const { return options_; }

 protected:
  enum class Phase { kIdle, kAccumulating, kReducing, kFinished };

  // Moves main_grads (and in kMainGrad mode the weights) into fresh, zeroed
  // memory: element i is a flat view with params()[i]'s numel. Values are kept.
  void adopt_layout(
      std::vector<torch::Tensor> main_grads,
      std::vector<torch::Tensor> weights);
  // A parameter is ready in the step's last backward.
  virtual void launch_ready(int param) = 0;
  // Launches what a step launches, in the same order, for a rank without data.
  virtual void shadow_launches() = 0;
  virtual void wait_all(SyncReport& report) = 0;
  // Once a step, when its sums are there, on every rank: also on one without
  // data, whose ready_order() is empty. May call collectives.
  virtual void after_finish() {}
  virtual void on_reset() {}
  // The dtype of a parameter's main_grad.
  static torch::ScalarType main_grad_dtype(const torch::Tensor& param);
  // The indices in the order in which they became ready in this step.
  const std::vector<int>& ready_order() const { return ready_order_; }
  // The lowest rank whose backward ran in this step. For after_finish(): where
  // some rank has no data it is a collective of all (an all-reduce of one
  // int64).
  int first_rank_with_data();

 private:
  // What finish() left in a parameter's .grad, to see whether it was used.
  struct HandedOver {
    const void* grad = nullptr;
    int64_t grad_version = 0;
    int64_t param_version = 0;
    uint64_t param_probe = 0;  // torch::optim::SGD raises no version
  };

  // The first gradient after finish(): the last step's must have been used.
  void begin_after_finished(int param);
  void before_accumulate(int param);
  void after_accumulate(int param);
  void begin_step();
  void check_unchanged() const;
  bool are_gradients_unused() const;
  void fill_missing();
  void hand_over();
  double mean_scale() const;
  double accumulation_scale(int param) const;
  void count_ranks_with_data(int mine);

  std::vector<NamedParam> params_;
  std::vector<NamedParam> frozen_;  // did not require a gradient when wrapped
  CommunicatorPtr communicator_;
  GradSyncOptions options_;
  // By parameter:
  std::vector<torch::Tensor> main_grads_;  // shaped as the parameter
  std::vector<torch::ScalarType> dtypes_;
  std::vector<const void*> addresses_;
  std::vector<uint8_t> touched_;  // has a gradient in this step
  std::vector<uint8_t> ready_;    // ... and will get no more
  std::vector<HandedOver> handed_over_;
  std::vector<uint64_t> reduced_probes_;  // of main_grads after finish()

  std::vector<int> ready_order_;
  Phase phase_ = Phase::kIdle;
  bool accumulate_only_ = false;
  bool uneven_inputs_ = false;
  int ranks_with_data_;
  int64_t layout_version_ = 0;
  SyncReport report_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

}  // namespace brigade
