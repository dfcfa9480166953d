// What a run will need, from its config alone.
#include <fmt/format.h>

#include "brigade/base/readable.h"
#include "brigade/planner/memory_estimate.h"
#include "brigade/planner/model_shape.h"
#include "brigade/planner/stage_cut.h"
#include "cli/create_config.h"

namespace brigade::cli {

namespace {

planner::Training planner_training(const TrainConfig& config) {
  planner::Training training;
  training.shape = planner::shape_of(*config.model.decoder, config.model.name);
  training.batch.sequence_tokens = config.training.seq_length;
  training.batch.sequences = config.training.micro_batch_size *
                             config.training.gradient_accumulation_steps *
                             config.distributed.dims.dp;
  const bool is_fp32 = config.model.dtype == ModelDtype::kFloat32;
  if (is_fp32)
    training.precision = planner::Precision::fp32();
  training.precision.keep_states_of(
      config.training.optimizer,
      is_fp32 ? WeightWidth::k32Bit : WeightWidth::k16Bit);
  if (config.distributed.pp_layers)
    training.stage_layers = *config.distributed.pp_layers;
  return training;
}

}  // namespace

std::string describe_memory(const TrainConfig& config) {
  if (config.adapter.is_used())
    return "memory per rank    not estimated with an adapter; see train "
           "--dry-run\n";
  const planner::Training training = planner_training(config);
  const planner::Layout layout{
      .dims = config.parallel_dims(),
      .zero_stage = config.distributed.zero_stage,
      .tokens = config.distributed.sequence_parallel ? TokenLayout::kSharded
                                                     : TokenLayout::kReplicated,
      .micro_batch = config.training.micro_batch_size,
      .schedule = config.distributed.pp_engine,
      .virtual_stages = config.distributed.pp_virtual_stages,
      .recompute = config.training.recompute.front()};
  const auto ranks = planner::estimate_memory(
      training, layout, planner::cut_stages(training, layout.stages()));
  const planner::MemoryParts& most = planner::largest(ranks);
  const MemoryUnit unit = memory_unit(most.total());
  return fmt::format(
      "memory per rank    at most {:.2f} {}: weights {:.2f}, gradients {:.2f}, "
      "optimizer {:.2f}, activations {:.2f}, rest {:.2f}\n",
      most.total() / unit.bytes,
      unit.name,
      most.weights / unit.bytes,
      most.gradients / unit.bytes,
      most.optimizer / unit.bytes,
      most.activations / unit.bytes,
      (most.buffers + most.fragmentation + most.reserved) / unit.bytes);
}

}  // namespace brigade::cli
