#include "brigade/planner/memory_estimate.h"

#include <algorithm>

#include "brigade/model_spec/shard.h"

namespace brigade::planner {
namespace {

// Parameters of a rank's largest layer.
double largest_layer(const ModelShape& shape, const Layout& layout) {
  double most = 0;
  if (shape.layers_with(LayerMlp::kOne) > 0)
    most = static_cast<double>(layer_parameters(shape));
  if (shape.layers_with(LayerMlp::kExperts) > 0)
    most = std::max(
        most,
        static_cast<double>(layer_parameters(shape, LayerMlp::kExperts)) +
            static_cast<double>(expert_parameters(shape)) / layout.dims.ep);
  return most / layout.dims.tp;
}

// Tokens of a micro-batch, once for each expert that they visit.
double expert_rows(const Training& training, const Layout& layout) {
  return local_tokens(training, layout) *
         static_cast<double>(training.shape.experts->num_experts_per_tok);
}

// What the MLP or the experts of a layer keep, on a rank: the activation's
// inputs and its output; of experts also the rows that they read and made, and
// the router's fp32 logits and scores.
double mlp_bytes(const Training& training, const Layout& layout, LayerMlp mlp) {
  const ModelShape& shape = training.shape;
  const double activation = training.precision.activation_bytes;
  const double per_width =
      activation * static_cast<double>(shape.up_matrices + 1) / layout.dims.tp;
  const double tokens = local_tokens(training, layout);
  if (mlp == LayerMlp::kOne)
    return per_width * tokens * static_cast<double>(shape.intermediate);
  const ExpertsConfig& experts = *shape.experts;
  constexpr double kLogits = 4 + 4;
  return expert_rows(training, layout) *
             (per_width * static_cast<double>(experts.width) +
              2 * activation * static_cast<double>(shape.hidden)) +
         tokens * (per_width * static_cast<double>(experts.shared_width) +
                   kLogits * static_cast<double>(experts.num_experts));
}

double buffer_bytes(const Training& training, const Layout& layout) {
  const double hidden = hidden_bytes(training, layout);
  const double activation = training.precision.activation_bytes;
  double bytes = 0;
  if (layout.dims.pp > 1)
    bytes += 4 * hidden;  // sent and received, each way
  if (layout.dims.tp > 1)
    bytes += activation * local_tokens(training, layout) *
             static_cast<double>(training.shape.hidden);  // the gathered tokens
  if (layout.dims.ep > 1)  // rows sent and received
    bytes += 2 * activation * expert_rows(training, layout) *
             static_cast<double>(training.shape.hidden);
  if (layout.dims.cp > 1) {
    const double block =
        2 * activation * local_tokens(training, layout) *
        static_cast<double>(
            kv_heads_per_rank(training.shape.kv_heads, layout.dims.tp) *
            training.shape.head_dim);
    bytes += 4 * block;  // two blocks on their way, and their gradients
  }
  // Zero stage 3 gathers a layer while the one before computes; stage 2 fills
  // the gradients of two while one is scattered.
  const double layer = largest_layer(training.shape, layout);
  if (layout.zero_stage >= 3)
    bytes += 2 * layer * training.precision.weight_bytes;
  if (layout.zero_stage >= 2)
    bytes += 2 * layer * training.precision.gradient_bytes;
  return bytes;
}

}  // namespace

double logits_bytes(const Training& training, const Layout& layout) {
  const double rows = static_cast<double>(
      vocab_rows_per_rank(training.shape.vocab, layout.dims.tp));
  // Logits as activations are, in fp32 where that is more, and their gradient;
  // with a teacher which of them it names, and once more fp32 without these.
  const double activation = training.precision.activation_bytes;
  const double bytes = activation + (activation < 4 ? 4 : 0) + 4 +
                       (training.head.teacher_tokens > 0 ? 1 + 4 : 0);
  return bytes * rows *
         training.program->tokens_with_logits(
             layout, local_tokens(training, layout));
}

double teacher_bytes(const Training& training, const Layout& layout) {
  return training.head.teacher_bytes(
      local_tokens(training, layout) *
      static_cast<double>(micro_batches(layout, training.batch)));
}

double layer_activation_bytes(
    const Training& training,
    const Layout& layout,
    Recompute recompute,
    LayerMlp mlp) {
  const ModelShape& shape = training.shape;
  const double activation = training.precision.activation_bytes;
  const double hidden = hidden_bytes(training, layout);
  if (recompute == Recompute::kFull)
    return hidden;
  const double tokens = local_tokens(training, layout);
  const double mask = shape.mask_bytes / activation;
  // Inputs of the norms and of the first products, and two residuals' masks.
  const double outer = (shape.norms + 2 + 2 * mask) * hidden;
  const double kv = static_cast<double>(
      kv_heads_per_rank(shape.kv_heads, layout.dims.tp) * shape.head_dim);
  const double query =
      static_cast<double>(shape.query_width()) / layout.dims.tp;
  // q, k, v and attention's output, and q and k before their norms.
  const double normed = shape.qk_norm ? query + kv : 0;
  const double inner = activation * tokens * (2 * query + 2 * kv + normed) +
                       mlp_bytes(training, layout, mlp);
  const double scores =
      recompute == Recompute::kSelective
          ? 0
          : training.program->kept_score_bytes(training, layout);
  return outer + inner + scores;
}

int64_t
live_micro_batches(const Layout& layout, int64_t micro_batches, int rank) {
  const int64_t p = layout.dims.pp;
  const int64_t v = layout.virtual_stages;
  const int64_t m = micro_batches;
  if (p == 1)
    return 1;
  switch (layout.schedule) {
    case ScheduleKind::kAfab:
      return m;
    case ScheduleKind::kOneFOneB:
      return std::min(m, p - rank);
    case ScheduleKind::kZeroBubble:
      return std::min(m, p);
    case ScheduleKind::kInterleaved1F1B: {
      // The schedule's rounds: as many as p micro-batches each go into m.
      const int64_t rounds = std::max<int64_t>(1, m / p);
      const int64_t round = (m + rounds - 1) / rounds;
      return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * round + 1);
    }
  }
  return 1;
}

namespace {

// What a rank of the pipeline holds, after tensor and expert parallel.
struct RankModel {
  ParameterSplit parameters;
  double matrices = 0;  // of layers, without experts
  int layers = 0;       // with one MLP
  int layers_with_experts = 0;
};

RankModel model_of_rank(
    const ModelShape& shape,
    const Layout& layout,
    const std::vector<LayerRange>& cut,
    int rank) {
  RankModel model;
  int64_t everywhere = 0;
  int64_t of_experts = 0;
  for (int stage = rank; stage < static_cast<int>(cut.size());
       stage += layout.dims.pp) {
    const StageParameters held = stage_parameters(shape, cut, stage);
    everywhere += held.everywhere;
    of_experts += held.of_experts;
    const LayerRange& range = cut[static_cast<size_t>(stage)];
    model.layers += shape.layers_with(LayerMlp::kOne, range);
    model.layers_with_experts += shape.layers_with(LayerMlp::kExperts, range);
  }
  const int64_t matrices =
      model.layers * layer_matrix_parameters(shape) +
      model.layers_with_experts *
          layer_matrix_parameters(shape, LayerMlp::kExperts);
  const double tp = layout.dims.tp;
  // A kv head that several ranks share is on each of them.
  const double copied_kv_heads =
      static_cast<double>(kv_heads_per_rank(shape.kv_heads, layout.dims.tp)) -
      static_cast<double>(shape.kv_heads) / tp;
  const double copied = (model.layers + model.layers_with_experts) * 2 *
                        copied_kv_heads *
                        static_cast<double>(shape.head_dim * shape.hidden);
  model.matrices = static_cast<double>(matrices) / tp + copied;
  model.parameters = {
      .everywhere = static_cast<double>(everywhere) / tp + copied,
      .of_experts = static_cast<double>(of_experts) / (tp * layout.dims.ep)};
  return model;
}

// What the layers of one micro-batch keep, on average over the virtual stages,
// and what a recomputed layer has once more while its backward runs.
struct KeptBytes {
  double of_micro_batch = 0;
  double made_again = 0;
};

KeptBytes kept_bytes(
    const Training& training,
    const Layout& layout,
    const RankModel& model) {
  const double part = training.program->recomputed_layers;
  KeptBytes kept;
  const auto add = [&](int layers, LayerMlp mlp) {
    if (layers == 0)
      return;
    const double whole =
        layer_activation_bytes(training, layout, Recompute::kNone, mlp);
    const double least =
        layer_activation_bytes(training, layout, layout.recompute, mlp);
    kept.of_micro_batch += static_cast<double>(layers) / layout.virtual_stages *
                           (part * least + (1 - part) * whole);
    kept.made_again = std::max(kept.made_again, whole - least);
  };
  add(model.layers, LayerMlp::kOne);
  add(model.layers_with_experts, LayerMlp::kExperts);
  return kept;
}

}  // namespace

std::vector<MemoryParts> estimate_memory(
    const Training& training,
    const Layout& layout,
    const std::vector<LayerRange>& cut) {
  const int pp = layout.dims.pp;
  const int64_t m = micro_batches(layout, training.batch);
  const int all = layout.dims.replicas();
  const int owners = training.program->zero_ranks;
  const int with_same_experts = all / layout.dims.ep;
  const auto sharded = [&](int from_stage, double bytes, double of_experts) {
    const int ranks = owners == 0 ? all : std::min(owners, all);
    return layout.zero_stage >= from_stage
               ? bytes / ranks + of_experts / with_same_experts
               : bytes + of_experts;
  };
  const Precision& precision = training.precision;
  const double saved_bytes =
      precision.optimizer_bytes -
      precision.matrix_optimizer_bytes.value_or(precision.optimizer_bytes);
  std::vector<MemoryParts> ranks(static_cast<size_t>(pp));
  for (int rank = 0; rank < pp; ++rank) {
    MemoryParts& memory = ranks[static_cast<size_t>(rank)];
    const RankModel model = model_of_rank(training.shape, layout, cut, rank);
    const auto& [everywhere, of_experts] = model.parameters;
    memory.weights = sharded(
        3,
        everywhere * precision.weight_bytes,
        of_experts * precision.weight_bytes);
    memory.gradients = sharded(
        2,
        everywhere * precision.gradient_bytes,
        of_experts * precision.gradient_bytes);
    memory.optimizer = sharded(
        1,
        everywhere * precision.optimizer_bytes - model.matrices * saved_bytes,
        of_experts * (precision.optimizer_bytes - saved_bytes));
    const KeptBytes kept = kept_bytes(training, layout, model);
    memory.activations =
        static_cast<double>(live_micro_batches(layout, m, rank)) *
            kept.of_micro_batch +
        kept.made_again + teacher_bytes(training, layout);
    if (rank == pp - 1)
      memory.activations += logits_bytes(training, layout);
    memory.buffers = buffer_bytes(training, layout);
    memory.fragmentation =
        kFragmentation * (memory.activations + memory.buffers);
    memory.reserved =
        static_cast<double>(training.machine.device.reserved_bytes);
  }
  return ranks;
}

const MemoryParts& largest(const std::vector<MemoryParts>& ranks) {
  return *std::ranges::max_element(ranks, {}, &MemoryParts::total);
}

}  // namespace brigade::planner
