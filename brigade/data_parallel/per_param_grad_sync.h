// GradSync with one all-reduce per parameter once the step's last backward has
// ended: the oracle of BucketedGradSync's tests. It has no buckets
// and no hook, and refuses sharding and sparse gradients.
#pragma once

#include <memory>
#include <vector>

#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/handover.h"

namespace brigade {

class PerParamGradSync : public GradSync {
 public:
  // Collective over all ranks that wrap the module; see GradSync's.
  PerParamGradSync(
      const std::vector<Param>& params,
      CommunicatorPtr all_ranks,
      const GradSyncOptions& options = {});

  void mark_ready(int param) override;
  void finish() override;
  void reset() override;
  const SyncReport& report() const override { return report_; }

 private:
  torch::Tensor& grad_of(int param) {
    return params()[static_cast<size_t>(param)].tensor.mutable_grad();
  }
  void begin_step();
  // A finished one: ends it, or goes on with gradients that nobody has used.
  void leave_step();
  // Of a sum over ranks each keeps the part that gives it once more.
  void keep_share(int param);
  // What a user made of .grad() since it was shown is what has accumulated.
  void adopt_shown(int param);
  // .grad() becomes what has accumulated.
  void show(int param);
  void before_accumulate(int param);
  void after_accumulate(int param);
  void at_backward_end();
  void reduce_all();
  void reduce(int param, bool is_used);

  const bool is_main_grad_;            // .grad() is main_grad
  std::vector<int64_t> has_gradient_;  // by parameter, in this step
  std::vector<bool> is_shown_;         // the same: .grad() is main_grad rounded
  EndOfBackward end_of_backward_;      // where the step may end
  bool was_finished_by_hand_ = false;
  SyncReport report_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

}  // namespace brigade
