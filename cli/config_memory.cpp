#include "cli/config_memory.h"

#include <fmt/format.h>

#include "brigade/base/readable.h"
#include "brigade/data/teacher_file.h"
#include "brigade/planner/memory_estimate.h"
#include "brigade/planner/model_shape.h"
#include "brigade/planner/stage_cut.h"

namespace brigade::cli {

namespace {

// What `evaluate --top-k` writes where it is not told another number.
constexpr int64_t kDefaultTeacherTokens = 32;

planner::Training planner_training(const TrainConfig& config) {
  planner::Training training;
  training.shape = planner::shape_of(*config.model.decoder, config.model.name);
  training.batch.sequence_tokens = config.training.seq_length;
  training.batch.sequences = sequences_per_step(config);
  const bool is_fp32 = config.model.dtype == ModelDtype::kFloat32;
  if (is_fp32)
    training.precision = planner::Precision::fp32();
  training.precision.keep_states_of(
      config.training.optimizer,
      is_fp32 ? WeightWidth::k32Bit : WeightWidth::k16Bit);
  if (config.distributed.pp_layers)
    training.stage_layers = *config.distributed.pp_layers;
  const LossOptions& loss = config.training.loss;
  training.head = planner::HeadWork::of(
      loss,
      loss.kind == LossKind::kDistill
          ? teacher_tokens_of(config.dataset.teacher)
          : 0);
  return training;
}

planner::Layout planner_layout(const TrainConfig& config) {
  return {
      .dims = config.parallel_dims(),
      .zero_stage = config.distributed.zero_stage,
      .tokens = config.distributed.sequence_parallel ? TokenLayout::kSharded
                                                     : TokenLayout::kReplicated,
      .micro_batch = config.training.micro_batch_size,
      .schedule = config.distributed.pp_engine,
      .virtual_stages = config.distributed.pp_virtual_stages,
      .recompute = config.training.recompute.front()};
}

}  // namespace

int64_t teacher_tokens_of(const std::filesystem::path& teacher) {
  std::error_code error;
  return std::filesystem::is_regular_file(teacher, error)
             ? TeacherFile(teacher).info().k
             : kDefaultTeacherTokens;
}

std::string describe_head(const TrainConfig& config) {
  const planner::Training training = planner_training(config);
  const planner::HeadWork& head = training.head;
  if (head.forward_passes > 1)
    return "head               computed twice, first for the losses of the "
           "pairs: 4/3 of cross-entropy's FLOPs\n";
  if (head.teacher_tokens == 0)
    return {};
  const planner::Layout layout = planner_layout(config);
  return fmt::format(
      "head               {} for a step's teacher on every rank, {} tokens at "
      "each place; at most {} of logits at once\n",
      readable_bytes(planner::teacher_bytes(training, layout)),
      head.teacher_tokens,
      readable_bytes(planner::logits_bytes(training, layout)));
}

std::string describe_memory(const TrainConfig& config) {
  if (config.adapter.is_used())
    return "memory per rank    not estimated with an adapter; see train "
           "--dry-run\n" +
           describe_head(config);
  const planner::Training training = planner_training(config);
  const planner::Layout layout = planner_layout(config);
  const auto ranks = planner::estimate_memory(
      training, layout, planner::cut_stages(training, layout.stages()));
  const planner::MemoryParts& most = planner::largest(ranks);
  const MemoryUnit unit = memory_unit(most.total());
  return fmt::format(
             "memory per rank    at most {:.2f} {}: weights {:.2f}, gradients "
             "{:.2f}, "
             "optimizer {:.2f}, activations {:.2f}, rest {:.2f}\n",
             most.total() / unit.bytes,
             unit.name,
             most.weights / unit.bytes,
             most.gradients / unit.bytes,
             most.optimizer / unit.bytes,
             most.activations / unit.bytes,
             (most.buffers + most.fragmentation + most.reserved) / unit.bytes) +
         describe_head(config);
}

}  // namespace brigade::cli
