// What a run's config says where its keys do not say it by themselves, as far
// as that takes no libtorch: options of data, buckets and the learning rate,
// and what is known from several keys. Pure, but for training_data_options(),
// which looks whether files are there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/data/loader.h"
#include "brigade/data/training_data.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// distributed.bucket_cap_mb in bytes of gradient.
int64_t bucket_capacity_bytes(const DistributedConfig& distributed);

// The plan that BucketedGradSync makes of grad_sync_options(), for --dry-run.
BucketPlanOptions bucket_plan_options(const TrainConfig& config);

WeightWidth weight_width(const TrainConfig& config);  // of model.dtype

// `last_step`: of the run (last_step()).
LrScheduleOptions lr_schedule_options(
    const TrainingConfig& training,
    int64_t last_step);
// The schedule of a run that has done so many steps and seen so many tokens.
LrScheduleOptions
lr_schedule_options(const TrainConfig& config, int64_t steps, int64_t tokens);

// Throws ConfigError when the config's model is not on this machine.
TrainingDataOptions training_data_options(
    const TrainConfig& config,
    TokenScanOptions scan = {});
// What dataset.name or the parts of dataset.mixture name, and dataset.teacher.
std::vector<std::string> data_names(const TrainConfig& config);
// What the rank at this place loads.
LoaderOptions loader_options(const TrainConfig& config, const Coordinate& at);

// Batches of an evaluation: training.eval_steps, as far as so many held-out
// samples make whole ones; at least 1.
int64_t evaluation_steps(const TrainConfig& config, uint64_t held_out_samples);
// That they are fewer than training.eval_steps, or that some samples count more
// than once; "" where neither is so.
std::string describe_short_evaluation(
    const TrainConfig& config,
    uint64_t held_out_samples);

// The global rank that reports: the first of the last pipeline stage.
int reporting_rank(const TrainConfig& config);

// Bytes of one checkpoint of this run, all ranks together.
uint64_t checkpoint_bytes(const TrainConfig& config);

}  // namespace brigade
