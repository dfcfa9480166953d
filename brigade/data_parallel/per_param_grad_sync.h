// GradSync with one all-reduce per parameter once the step's last backward has
// ended: the oracle of BucketedGradSync's tests. It has no buckets, no
// hand-over, no hook, and refuses sharding, sparse gradients, and a backward on
// top of gradients that no optimizer has used. Under kParamDtype .grad() is
// undefined until then, and further backwards before finish() are added.
#pragma once

#include <memory>
#include <vector>

#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync.h"

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
  void after_accumulate(int param);
  void reduce_all();

  const bool is_main_grad_;            // .grad() is main_grad
  std::vector<int64_t> has_gradient_;  // by parameter, in this step
  bool waits_for_end_ = false;         // of the backward under way
  bool was_finished_by_hand_ = false;
  SyncReport report_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

}  // namespace brigade
