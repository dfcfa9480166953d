#include "brigade/planner/memory_estimate.h"

#include <algorithm>

#include "brigade/model_spec/shard.h"

namespace brigade::planner {
namespace {

constexpr double kActivationBytes = 2;  // bytes of an activation

double logits_bytes(const Training& training, const Layout& layout) {
  const double rows = static_cast<double>(
      vocab_rows_per_rank(training.shape.vocab, layout.dims.tp));
  // Logits in 2 bytes, in fp32 and their gradient.
  constexpr double kBytes = 2 + 4 + 4;
  return kBytes * rows *
         training.program->tokens_with_logits(
             layout, local_tokens(training, layout));
}

double buffer_bytes(const Training& training, const Layout& layout) {
  const double hidden = hidden_bytes(training, layout);
  double bytes = 0;
  if (layout.dims.pp > 1)
    bytes += 4 * hidden;  // sent and received, each way
  if (layout.dims.tp > 1)
    bytes += kActivationBytes * local_tokens(training, layout) *
             static_cast<double>(training.shape.hidden);  // the gathered tokens
  if (layout.dims.cp > 1) {
    const double block =
        2 * kActivationBytes * local_tokens(training, layout) *
        static_cast<double>(
            kv_heads_per_rank(training.shape.kv_heads, layout.dims.tp) *
            training.shape.head_dim);
    bytes += 4 * block;  // two blocks on their way, and their gradients
  }
  // Zero stage 3 gathers a layer while the one before computes; stage 2 fills
  // the gradients of two while one is scattered.
  const double layer =
      static_cast<double>(layer_parameters(training.shape)) / layout.dims.tp;
  if (layout.zero_stage >= 3)
    bytes += 2 * layer * training.precision.weight_bytes;
  if (layout.zero_stage >= 2)
    bytes += 2 * layer * training.precision.gradient_bytes;
  return bytes;
}

}  // namespace

double layer_activation_bytes(
    const Training& training,
    const Layout& layout,
    Recompute recompute) {
  const ModelShape& shape = training.shape;
  const double hidden = hidden_bytes(training, layout);
  if (recompute == Recompute::kFull)
    return hidden;
  const double tokens = local_tokens(training, layout);
  const double mask = shape.dropout ? 1 / kActivationBytes : 0;
  // Inputs of the norms and of the first products, and two dropout masks.
  const double outer = (shape.norms + 2 + 2 * mask) * hidden;
  const double kv = static_cast<double>(
      kv_heads_per_rank(shape.kv_heads, layout.dims.tp) * shape.head_dim);
  const double query =
      static_cast<double>(shape.query_width()) / layout.dims.tp;
  const double intermediate =
      static_cast<double>(shape.intermediate) / layout.dims.tp;
  // q, k, v and attention's output; the activation's inputs and its output.
  const double inner =
      kActivationBytes * tokens *
      (2 * query + 2 * kv +
       static_cast<double>(shape.up_matrices() + 1) * intermediate);
  const double scores =
      recompute == Recompute::kSelective
          ? 0
          : training.program->kept_score_bytes(training, layout);
  return outer + inner + scores;
}

int live_micro_batches(const Layout& layout, int64_t micro_batches, int rank) {
  const int64_t p = layout.dims.pp;
  const int64_t v = layout.virtual_stages;
  const int64_t m = micro_batches;
  int64_t live = 1;
  if (p > 1) {
    switch (layout.schedule) {
      case ScheduleKind::kAfab:
        live = m;
        break;
      case ScheduleKind::kOneFOneB:
        live = std::min(m, p - rank);
        break;
      case ScheduleKind::kZeroBubble:
        live = std::min(m, p);
        break;
      case ScheduleKind::kInterleaved1F1B: {
        // The schedule's rounds: as many as p micro-batches each go into m.
        const int64_t rounds = std::max<int64_t>(1, m / p);
        const int64_t round = (m + rounds - 1) / rounds;
        live = std::min(m * v, 2 * (p - rank - 1) + (v - 1) * round + 1);
      } break;
    }
  }
  return static_cast<int>(live);
}

std::vector<MemoryParts> estimate_memory(
    const Training& training,
    const Layout& layout,
    const std::vector<LayerRange>& cut) {
  const int pp = layout.dims.pp;
  const int64_t m = micro_batches(layout, training.batch);
  const int all = layout.dims.dp * layout.dims.cp;
  const int owners = training.program->zero_ranks;
  const auto sharded = [&](int from_stage, double bytes) {
    const int ranks = owners == 0 ? all : std::min(owners, all);
    return layout.zero_stage >= from_stage ? bytes / ranks : bytes;
  };
  const Precision& precision = training.precision;
  const double part = training.program->recomputed_layers;
  const double whole =
      layer_activation_bytes(training, layout, Recompute::kNone);
  const double kept =
      layout.recompute == Recompute::kNone
          ? whole
          : part * layer_activation_bytes(training, layout, layout.recompute) +
                (1 - part) * whole;
  std::vector<MemoryParts> ranks(static_cast<size_t>(pp));
  for (int rank = 0; rank < pp; ++rank) {
    MemoryParts& memory = ranks[static_cast<size_t>(rank)];
    double parameters = 0;
    int layers = 0;
    for (int stage = rank; stage < static_cast<int>(cut.size()); stage += pp) {
      parameters +=
          static_cast<double>(stage_parameters(training.shape, cut, stage));
      layers += cut[static_cast<size_t>(stage)].size();
    }
    parameters /= layout.dims.tp;
    memory.weights = sharded(3, parameters * precision.weight_bytes);
    memory.gradients = sharded(2, parameters * precision.gradient_bytes);
    const double matrices =
        static_cast<double>(layers * layer_matrix_parameters(training.shape)) /
        layout.dims.tp;
    const int saved_bytes =
        precision.optimizer_bytes -
        precision.matrix_optimizer_bytes.value_or(precision.optimizer_bytes);
    memory.optimizer = sharded(
        1, parameters * precision.optimizer_bytes - matrices * saved_bytes);
    const double layers_per_stage =
        static_cast<double>(layers) / layout.virtual_stages;
    memory.activations =
        live_micro_batches(layout, m, rank) * layers_per_stage * kept;
    // A recomputed layer exists once more while its backward runs.
    if (layout.recompute != Recompute::kNone && layers > 0)
      memory.activations +=
          whole - layer_activation_bytes(training, layout, layout.recompute);
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
  return *std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return a.total() < b.total();
      });
}

}  // namespace brigade::planner
