// GradSync with one all-reduce a gradient, from its hook: what picotron's naive
// data parallel means to do. The oracle of BucketedGradSync's tests.
//
// Launches follow the order in which autograd reaches the parameters, which is
// the same on all ranks only while all run the same graph.
#pragma once

#include <vector>

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

class PerParamGradSync : public GradSync {
 public:
  PerParamGradSync(
      std::vector<NamedParam> params,
      CommunicatorPtr communicator,
      const GradSyncOptions& options = {});

  const std::vector<GradSegment>& segments() const override {
    return segments_;
  }

 private:
  void launch_ready(int param) override;
  void shadow_launches() override;
  void wait_all(SyncReport& report) override;

  struct Launch {
    WorkPtr work;
    BucketTiming timing;
  };
  std::vector<GradSegment> segments_;  // one a parameter
  std::vector<Launch> launches_;
  std::vector<int> last_order_;
};

}  // namespace brigade
