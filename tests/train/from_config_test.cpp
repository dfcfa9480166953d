#include "brigade/train/from_config.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

// Each schedule known by its curve: half way and at the end of 100 steps.
TEST(FromConfig, LearningRateFollowsTheNamedSchedule) {
  struct Case {
    LrScheduleKind kind;
    double half_way;
    double at_end;
  };
  for (const auto& [kind, half_way, at_end] :
       {Case{LrScheduleKind::kConstant, 8, 8},
        Case{LrScheduleKind::kCosine, 5, 2},
        Case{LrScheduleKind::kLinear, 5, 2},
        Case{LrScheduleKind::kWsd, 8, 2}}) {
    TrainingConfig training;
    training.lr_schedule = kind;
    training.learning_rate = 8;
    training.min_learning_rate = 2;
    training.total_train_steps = 100;
    training.decay_steps = 10;
    const LrScheduleOptions options = lr_schedule_options(training, 100);
    EXPECT_NEAR(learning_rate(options, 51), half_way, 1e-9) << to_string(kind);
    EXPECT_NEAR(learning_rate(options, 101), at_end, 1e-9) << to_string(kind);
    // A run of 40 steps, by max_tokens.
    const LrScheduleOptions cut = lr_schedule_options(training, 40);
    EXPECT_NEAR(learning_rate(cut, 41), at_end, 1e-9) << to_string(kind);
    training.lr_end = LrEnd::kAtTotalTrainSteps;
    const LrScheduleOptions before = lr_schedule_options(training, 40);
    EXPECT_NEAR(learning_rate(before, 50), half_way, 1e-9) << to_string(kind);
    EXPECT_NEAR(learning_rate(before, 100), at_end, 1e-9) << to_string(kind);
  }
  TrainingConfig cosine;
  cosine.lr_schedule = LrScheduleKind::kCosine;
  cosine.learning_rate = 8;
  cosine.total_train_steps = 100;
  // 4 (1 + cos(pi / 4)), where linear would give 6.
  EXPECT_NEAR(
      learning_rate(lr_schedule_options(cosine, 100), 26),
      6.828427124746,
      1e-9);
  cosine.warmup_steps = 10;
  EXPECT_NEAR(learning_rate(lr_schedule_options(cosine, 100), 5), 4, 1e-9);
}

TEST(FromConfig, BucketsHoldBucketCapMbOfGradient) {
  DistributedConfig distributed;
  distributed.bucket_cap_mb = 1.5;
  distributed.bucket_order = BucketOrder::kObserved;
  distributed.dp_size = 2;
  distributed.cp_size = 3;
  const GradSyncOptions sync = grad_sync_options(distributed);
  const BucketPlanOptions plan = bucket_plan_options(distributed);
  EXPECT_EQ(sync.bucket_capacity_bytes, 1536 * 1024);
  EXPECT_EQ(plan.capacity_bytes, sync.bucket_capacity_bytes);
  EXPECT_EQ(plan.first_bucket_bytes, sync.first_bucket_bytes);
  EXPECT_EQ(plan.last_bucket_bytes, sync.last_bucket_bytes);
  EXPECT_EQ(sync.order, BucketOrder::kObserved);
  EXPECT_EQ(plan.ranks, 6);
}

TEST(FromConfig, KernelsAreNamedAsInTheConfig) {
  EXPECT_EQ(kernels_of(ModelKernels::kAuto), ops::Kernels::kAuto);
  EXPECT_EQ(kernels_of(ModelKernels::kCpu), ops::Kernels::kCpu);
  EXPECT_EQ(kernels_of(ModelKernels::kAten), ops::Kernels::kAten);
}

TEST(FromConfig, OptimizerAndCommunicatorTakeTheirKeys) {
  TrainConfig config;
  config.training.adam_beta1 = 0.5;
  config.training.adam_beta2 = 0.75;
  config.training.adam_eps = 0.125;
  config.distributed.timeout_seconds = 7;
  config.distributed.check_collectives = true;
  config.model.kernels = ModelKernels::kAten;
  const AdamWOptions adam = adamw_options(config);
  EXPECT_EQ(adam.beta1, 0.5);
  EXPECT_EQ(adam.beta2, 0.75);
  EXPECT_EQ(adam.eps, 0.125);
  EXPECT_EQ(adam.kernels, ops::Kernels::kAten);
  const CommunicatorOptions communicator =
      communicator_options(config.distributed);
  EXPECT_EQ(communicator.timeout, std::chrono::seconds(7));
  EXPECT_TRUE(communicator.check_collectives);
}

}  // namespace
}  // namespace brigade
