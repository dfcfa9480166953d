// GradSync with one all-reduce per parameter, from its hook: the naive data
// parallelism of picotron, and the oracle of BucketedGradSync's tests. Of that
// one's parts it uses none: neither flat memory, nor buckets, nor the
// hand-over.
//
// Launches follow the order in which autograd reaches the parameters, which is
// the same on all ranks only while all run the same graph. With
// MissingGradient::kZero ranks may run different ones: all is launched by
// finish(), in the order of params(), as with GraphReach::kAsInFirstStep.
//
// Does not call GradSyncOptions::hook. Shards nothing, and has no sparse
// gradients: GradSyncOptions::sharding other than kNone and parameters with
// sparse gradients are a ConfigError.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

class PerParamGradSync : public GradSync {
 public:
  // Collective; throws what WrappedParams' constructor throws, and broadcasts
  // rank 0's values.
  PerParamGradSync(
      std::vector<NamedParam> params,
      CommunicatorPtr all_ranks,
      const GradSyncOptions& options = {});
  ~PerParamGradSync() override;

  void set_accumulate_only(bool value) override { accumulate_only_ = value; }
  bool accumulate_only() const override { return accumulate_only_; }
  void mark_ready(int param) override;
  // Steps at the step's end.
  void set_bucket_step(BucketStepPtr step) override {
    bucket_step_ = std::move(step);
  }
  void finish() override;
  void reset() override;
  double grad_scale() const override;

  const std::vector<NamedParam>& params() const override {
    return params_.trainable();
  }
  // They stay where they are.
  const std::vector<NamedParam>& frozen() const override {
    return params_.frozen();
  }
  const torch::Tensor& main_grad(int param) const override {
    return of(param).main_grad;
  }
  // One per parameter.
  const std::vector<GradSegment>& segments() const override {
    return segments_;
  }
  int64_t layout_version() const override { return 1; }
  const FlatMemoryPtr& flat_memory() const override { return flat_memory_; }
  void zero_main_grads() override;
  const std::vector<OwnedPart>& owned_parts() const override {
    return owned_parts_;
  }
  void gather_weights() override {}
  void wait_for_weights() override {}
  void wait_for_weight(int /*param*/) override {}

  void allow_uneven_inputs(const UnevenInputsOptions& options) override {
    check_has_one_group(params(), *all_ranks_);
    uneven_inputs_.allow(options);
  }
  int join() override;

  const SyncReport& report() const override { return report_; }
  const CommunicatorPtr& all_ranks() const override { return all_ranks_; }
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to) override;
  const GradSyncOptions& options() const override { return options_; }

 private:
  enum class Phase { kIdle, kAccumulating, kReducing, kFinished };
  enum class ParamState { kNone, kAccumulated, kReady };

  struct Param {
    torch::Tensor tensor;
    torch::Tensor main_grad;
    torch::ScalarType dtype = torch::kFloat;  // the parameter's own
    ParamState state = ParamState::kNone;
    // kParamDtype, while micro-batches accumulate: the copy of main_grad in
    // .grad, and its version, to notice that the user changed it.
    torch::Tensor shown;
    int64_t shown_version = 0;
  };
  struct Launch {
    WorkPtr work;
    BucketTiming timing;
  };

  Param& of(int param) { return all_[static_cast<size_t>(param)]; }
  const Param& of(int param) const { return all_[static_cast<size_t>(param)]; }
  bool is_main_grad() const {
    return options_.handover == GradHandover::kMainGrad;
  }
  bool zeros_count() const {
    return options_.missing_gradient == MissingGradient::kZero;
  }
  bool is_reached_often() const {
    return options_.reach == GraphReach::kAsInFirstStep;
  }
  bool launches_in_finish() const {
    return zeros_count() || is_reached_often();
  }

  void before_accumulate(int param, Arrival arrival);
  void after_accumulate(int param);
  void begin_step();
  void leave_step();
  void take_back_weights();
  void take_accumulated(Param& param);
  void show(Param& param);
  void keep_share(int param);
  void begin_reducing();
  void launch(int param);
  void reduce_all();
  std::vector<int64_t> agree_on_used();
  void wait_all();
  void hand_over(const std::vector<int64_t>& used);
  void step_all();
  double mean_scale() const;
  double mean_scale_of(int param) const;
  int ranks_with_data(int param) const;
  // What a main_grad is multiplied with before its reduction, so that one
  // grad_scale() serves all groups.
  double factor_of(int param) const {
    return is_main_grad() ? mean_scale_of(param) / mean_scale() : 1.0;
  }
  Communicator& group_of(int param) const {
    return *params()[static_cast<size_t>(param)].group.ranks;
  }
  void check_not_ready(int param) const;
  void throw_if_missing() const;

  CommunicatorPtr all_ranks_;
  GradSyncOptions options_;
  WrappedParams params_;
  UnevenInputs uneven_inputs_;
  std::vector<Param> all_;
  std::vector<GradSegment> segments_;
  std::vector<OwnedPart> owned_parts_;
  FlatMemoryPtr flat_memory_;

  BucketStepPtr bucket_step_;
  Phase phase_ = Phase::kIdle;
  bool accumulate_only_ = false;
  bool callback_is_queued_ = false;
  bool has_fused_ = false;
  double given_scale_ = 1;          // grad_scale() of the last reduction
  bool finish_was_called_ = false;  // since the step's end
  std::vector<Launch> launches_;
  std::vector<int> last_order_;  // of launches
  SyncReport report_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

}  // namespace brigade
