#include "brigade/train/from_config.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "brigade/model_spec/optimizer_memory.h"
#include "brigade/run/run_options.h"

namespace brigade {

CommunicatorOptions communicator_options(const DistributedConfig& distributed) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(distributed.timeout_seconds);
  options.check_collectives = distributed.check_collectives;
  return options;
}

Backend backend_of(const DistributedConfig& distributed) {
  if (!distributed.backend)
    return distributed.use_cpu == false ? Backend::kNccl : Backend::kGloo;
  // Where use_cpu is true, nccl has been reported as ignored.
  if (distributed.backend == Backend::kNccl && distributed.use_cpu == true)
    return Backend::kGloo;
  return *distributed.backend;
}

Sharding sharding_of(const DistributedConfig& distributed) {
  return static_cast<Sharding>(distributed.zero_stage);
}

namespace {

// Gradients are sums over a rank's tokens: 1024 times a mean is sent at most,
// which overflows where an element of the mean is above 64. 1 for fewer tokens.
double fp16_divisor(const TrainConfig& config) {
  const auto tokens = static_cast<double>(tokens_per_step(config)) /
                      config.distributed.dims.replicas();
  return std::max(1.0, std::exp2(std::ceil(std::log2(tokens))) / 1024);
}

}  // namespace

BucketHook wire_hook(const TrainConfig& config, HookMemoryPtr memory) {
  const DistributedConfig& distributed = config.distributed;
  const Sharding sharding = sharding_of(distributed);
  switch (distributed.grad_wire) {
    case GradWire::kFp32:
      return sum_hook(sharding);
    case GradWire::kBf16:
      return sum_hook(sharding, torch::kBFloat16);
    case GradWire::kFp16:
      return sum_hook(sharding, torch::kHalf, fp16_divisor(config));
    // With sharding config/data_parallel_rules.cpp refuses these two.
    case GradWire::kInt8:
      return int8_hook(std::move(memory));
    case GradWire::kPowerSgd:
      return powersgd_hook(distributed.powersgd, std::move(memory));
  }
  return sum_hook(sharding);
}

GradSyncOptions grad_sync_options(const TrainConfig& config) {
  const DistributedConfig& distributed = config.distributed;
  GradSyncOptions options;
  options.block_numel = state_block_numel(config.training.optimizer);
  options.bucket_capacity_bytes = bucket_capacity_bytes(distributed);
  options.order = distributed.bucket_order;
  options.reduction = Reduction::kSum;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.sharding = sharding_of(distributed);
  options.gather = GatherMode::kOverlapForward;
  return options;
}

StepRule step_rule_of(const ParameterRow& row, const TrainingConfig& training) {
  const bool decays =
      training.weight_decay_on == WeightDecayOn::kAll || row.decays;
  const OptimizerOptions& optimizer = training.optimizer;
  const StepUnit unit = step_unit(row, optimizer);
  const double factor = optimizer.mup_rate(row.mup, unit);
  // A step takes the same share of every weight, whatever its rate.
  return {
      .weight_decay = decays ? training.weight_decay / factor : 0.0,
      .rate = optimizer.rate_of(unit, training.lr.peak) * factor,
      .unit = unit};
}

OptimizerOptions optimizer_options(const TrainConfig& config) {
  OptimizerOptions options = config.training.optimizer;
  options.set_kernels(config.model.kernels);
  options.seed = static_cast<uint64_t>(config.training.seed);
  return options;
}

OuterFragmentOptions outer_fragment_options(const TrainConfig& config) {
  OuterFragmentOptions options = config.distributed.outer;
  options.kernels = config.model.kernels;
  return options;
}

}  // namespace brigade
