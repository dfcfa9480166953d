#include "brigade/train/from_config.h"

#include <gtest/gtest.h>

#include "brigade/run/run_options.h"

namespace brigade {
namespace {

// Each schedule known by its curve: half way and at the end of 100 steps.
TEST(FromConfig, LearningRateFollowsTheNamedSchedule) {
  struct Case {
    LrDecay kind;
    double half_way;
    double at_end;
  };
  for (const auto& [kind, half_way, at_end] :
       {Case{LrDecay::kConstant, 8, 8},
        Case{LrDecay::kCosine, 5, 2},
        Case{LrDecay::kLinear, 5, 2},
        Case{LrDecay::kWsd, 8, 2}}) {
    TrainingConfig training;
    training.lr.decay = kind;
    training.lr.peak = 8;
    training.lr.minimum = 2;
    training.total_train_steps = 100;
    training.lr.decay_steps = 10;
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
  cosine.lr.decay = LrDecay::kCosine;
  cosine.lr.peak = 8;
  cosine.total_train_steps = 100;
  // 4 (1 + cos(pi / 4)), where linear would give 6.
  EXPECT_NEAR(
      learning_rate(lr_schedule_options(cosine, 100), 26),
      6.828427124746,
      1e-9);
  cosine.lr.warmup_steps = 10;
  EXPECT_NEAR(learning_rate(lr_schedule_options(cosine, 100), 5), 4, 1e-9);
}

TEST(FromConfig, BucketsHoldBucketCapMbOfGradient) {
  TrainConfig config;
  DistributedConfig& distributed = config.distributed;
  distributed.bucket_cap_mb = 1.5;
  distributed.bucket_order = BucketOrder::kObserved;
  distributed.dims.dp = 2;
  distributed.dims.cp = 3;
  const GradSyncOptions sync = grad_sync_options(config);
  const BucketPlanOptions plan = bucket_plan_options(config);
  EXPECT_EQ(sync.bucket_capacity_bytes, 1536 * 1024);
  EXPECT_EQ(plan.capacity_bytes, sync.bucket_capacity_bytes);
  EXPECT_EQ(plan.first_bucket_bytes, sync.first_bucket_bytes);
  EXPECT_EQ(plan.last_bucket_bytes, sync.last_bucket_bytes);
  EXPECT_EQ(sync.order, BucketOrder::kObserved);
  EXPECT_EQ(plan.ranks, 6);
}

TEST(FromConfig, TheBackendIsWhatUseCpuImplies) {
  DistributedConfig distributed;
  EXPECT_EQ(backend_of(distributed), Backend::kGloo);
  distributed.use_cpu = false;
  EXPECT_EQ(backend_of(distributed), Backend::kNccl);
  distributed.backend = Backend::kMpi;
  EXPECT_EQ(backend_of(distributed), Backend::kMpi);
  distributed.backend = Backend::kNccl;
  EXPECT_EQ(backend_of(distributed), Backend::kNccl);
  distributed.use_cpu = true;
  EXPECT_EQ(backend_of(distributed), Backend::kGloo);
}

TEST(FromConfig, TheCommunicatorTakesItsKeys) {
  DistributedConfig distributed;
  distributed.timeout_seconds = 7;
  distributed.check_collectives = true;
  const CommunicatorOptions communicator = communicator_options(distributed);
  EXPECT_EQ(communicator.timeout, std::chrono::seconds(7));
  EXPECT_TRUE(communicator.check_collectives);
}

TEST(FromConfig, TheOuterStepIsComputedByTheModelsKernels) {
  TrainConfig config;
  config.model.kernels = ops::Kernels::kAten;
  config.distributed.outer.alpha = 0.25;
  EXPECT_EQ(outer_fragment_options(config).kernels, ops::Kernels::kAten);
  EXPECT_EQ(outer_fragment_options(config).alpha, 0.25);
}

// A matrix four times as wide as the base's, and a head.
TEST(FromConfig, MupsRatesFollowTheClassAtEqualDecay) {
  ParameterRow matrix;
  matrix.mup = {.values = 1, .width = 4};
  ParameterRow head;
  head.role = ParameterRole::kHead;
  head.mup = {.values = 0.25, .width = 1};
  TrainingConfig training;
  training.weight_decay = 0.1;
  const auto rate = [&](const ParameterRow& row) {
    const StepRule rule = step_rule_of(row, training);
    EXPECT_DOUBLE_EQ(rule.rate * rule.weight_decay, 0.1);
    return rule.rate;
  };
  EXPECT_EQ(rate(matrix), 0.25);
  EXPECT_EQ(rate(head), 0.25);
  EXPECT_EQ(rate(ParameterRow{}), 1);
  training.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_EQ(rate(matrix), 0.5);
  EXPECT_EQ(rate(head), 0.25);
  for (const MuonScale scale : {MuonScale::kOriginal, MuonScale::kSpectral}) {
    training.optimizer.muon.scale = scale;
    EXPECT_EQ(rate(matrix), 1);
    EXPECT_EQ(rate(head), 0.25);
  }
}

}  // namespace
}  // namespace brigade
