// GradSync with one collective a bucket: buckets fill during backward and are
// launched in plan order, whatever order they fill in, while backward goes on.
#pragma once

#include <vector>

#include "brigade/data_parallel/bucket.h"
#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

class BucketedGradSync : public GradSync {
 public:
  BucketedGradSync(
      std::vector<NamedParam> params,
      CommunicatorPtr communicator,
      const GradSyncOptions& options = {});

  const std::vector<GradSegment>& segments() const override {
    return segments_;
  }
  const BucketPlan& plan() const { return plan_; }

 private:
  void launch_ready(int param) override;
  void shadow_launches() override;
  void wait_all(SyncReport& report) override;
  void after_finish() override;
  void on_reset() override;

  void lay_out(const std::vector<int>& order);

  BucketPlan plan_;
  std::vector<Bucket> buckets_;
  std::vector<GradSegment> segments_;
  std::vector<size_t> bucket_of_;  // by parameter
  size_t next_to_launch_ = 0;
  bool order_is_final_;
};

}  // namespace brigade
