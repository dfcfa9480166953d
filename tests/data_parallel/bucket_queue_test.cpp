// Buckets are launched in plan order, in whatever order they fill.
#include "brigade/data_parallel/bucket_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::make_world_of_one;

// Logs its wait().
class NotedWork : public Work {
 public:
  NotedWork(int bucket, std::vector<std::string>& log)
      : bucket_(bucket), log_(&log) {}
  void wait() override {
    if (!std::exchange(is_over_, true))
      log_->push_back("wait " + std::to_string(bucket_));
  }
  bool is_completed() override { return true; }
  int64_t finished_ns() override { return 0; }

 private:
  int bucket_;
  std::vector<std::string>* log_;
  bool is_over_ = false;
};

// `count` parameters, each with a bucket of its own; the last is the first in
// the plan.
struct QueuedBuckets {
  QueuedBuckets(int count, Sharding sharding) {
    for (int i = 0; i < count; ++i) {
      params.push_back(
          {.name = "p" + std::to_string(i),
           .tensor = torch::zeros({4}, torch::requires_grad()),
           .has_own_bucket = true,
           .group = make_world_of_one()});
    }
    plan = plan_buckets(
        bucket_params_of(params, sharding),
        initial_order(BucketOrder::kReverse, count),
        {});
    memory = std::make_unique<ParamMemory>(
        plan, params, FlatWeights::kMove, sharding);
    const BucketHook hook = [this](BucketView& bucket, Communicator&) {
      log.push_back("launch " + std::to_string(bucket.index));
      return std::make_shared<NotedWork>(bucket.index, log);
    };
    queue = std::make_unique<BucketQueue>(
        plan, *memory, GradSyncOptions{.hook = hook});
  }
  std::vector<Param> params;
  BucketPlan plan;
  std::unique_ptr<ParamMemory> memory;
  std::vector<std::string> log;
  std::unique_ptr<BucketQueue> queue;
};

TEST(BucketQueue, AFullBucketWaitsForThoseBeforeIt) {
  QueuedBuckets of(3, Sharding::kNone);
  of.queue->mark_ready(0);
  of.queue->mark_ready(1);
  EXPECT_THAT(of.log, IsEmpty());
  of.queue->mark_ready(2);
  EXPECT_THAT(of.log, ElementsAre("launch 0", "launch 1", "launch 2"));
  EXPECT_EQ(of.queue->wait().size(), 3);
}

TEST(BucketQueue, HasAtMostTwoBucketsUnderWayWithDividedGradients) {
  QueuedBuckets of(4, Sharding::kGradients);
  for (int param = 3; param >= 0; --param)
    of.queue->mark_ready(param);
  EXPECT_THAT(
      of.log,
      ElementsAre(
          "launch 0", "launch 1", "launch 2", "wait 0", "launch 3", "wait 1"));
  of.queue->wait();
  EXPECT_THAT(
      std::vector<std::string>(of.log.begin() + 6, of.log.end()),
      ElementsAre("wait 2", "wait 3"));
}

TEST(BucketQueue, LaunchesTheRestInPlanOrderForARankWithoutData) {
  QueuedBuckets of(3, Sharding::kNone);
  of.queue->mark_ready(2);
  of.queue->launch_rest();
  EXPECT_THAT(of.log, ElementsAre("launch 0", "launch 1", "launch 2"));
  of.queue->abandon();
  of.queue->reset();
  of.log.clear();
  of.queue->launch_rest();
  EXPECT_THAT(of.log, ElementsAre("launch 0", "launch 1", "launch 2"));
  of.queue->wait();
}

TEST(BucketQueue, OneBucketMayBeSettledBeforeTheOthers) {
  QueuedBuckets of(2, Sharding::kNone);
  EXPECT_FALSE(of.queue->is_reduced(0));
  of.queue->mark_ready(1);
  EXPECT_TRUE(of.queue->is_reduced(0));
  EXPECT_FALSE(of.queue->is_reduced(1));
  of.queue->settle(0);
  of.queue->settle(1);  // not launched: nothing to wait for
  EXPECT_THAT(of.log, ElementsAre("launch 0", "wait 0"));
  of.queue->mark_ready(0);
  of.queue->wait();
  EXPECT_THAT(of.log, ElementsAre("launch 0", "wait 0", "launch 1", "wait 1"));
}

}  // namespace
}  // namespace brigade
