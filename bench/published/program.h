// What the programs of published runs do in other ways than Brigade.
#pragma once

#include <algorithm>
#include <cmath>

#include "brigade/machine/device_time.h"
#include "brigade/planner/layer_time.h"
#include "brigade/planner/training.h"

namespace brigade::bench {

// Constants that only such programs need, as machine/constants.h.
struct ProgramConstants {
  // Passes over memory of an unfused sequence of elementwise ops, for each pass
  // of the fused one.
  double eager_passes = 2.0;
  // What the host takes for the kernels of a layer's forward, or of either half
  // of its backward, where it launches each when the one before has ended.
  double blocked_host_s = 2.5e-3;
};

enum class Attention {
  kMaterialized,  // [H, T, T] scores in memory, fused scale-mask-softmax
  kFlash1,
  kFlash2,
  kFlash3,
};
// What of a tensor between stages crosses, where the ranks of tensor parallel
// all have the whole of it.
enum class TransferPieces {
  kWhole,    // each rank sends it
  kOfRanks,  // each sends its part, and the receivers gather
};
enum class TensorParallel {
  kExposed,
  kPipelined,  // with products, in tp pieces
};
// How a micro-batch's weight gradients join those of the micro-batches before.
enum class Accumulation {
  kInProduct,  // the product adds to the gradient's memory
  kSeparate,   // the product writes a new tensor, which another kernel adds
};
enum class WeightGather {
  kAllGather,
  kOwnerBroadcasts,  // each owner of a shard broadcasts it, one after another
};
enum class RankOrder {
  kDpPpCpTp,  // Brigade, picotron
  kPpDpCpTp,  // Megatron, DeepSpeed
};

struct PublishedProgram : planner::Program {
  using Training = planner::Training;
  using Layout = planner::Layout;

  Attention kernel = Attention::kFlash2;
  TransferPieces transfer_pieces = TransferPieces::kWhole;
  TensorParallel tensor_parallel = TensorParallel::kExposed;
  Accumulation adds = Accumulation::kInProduct;
  WeightGather weight_gather = WeightGather::kAllGather;
  RankOrder rank_order = RankOrder::kDpPpCpTp;

  // Fp32 logits of a whole micro-batch: the cast, log-softmax and its backward
  // read and write them.
  PublishedProgram() { logit_bytes = 24; }
  double tokens_with_logits(const Layout& /*layout*/, double tokens)
      const override {
    return tokens;
  }

  // Ring attention's backward begins with the rank's own block.
  int backward_exchanges(int cp) const override { return 2 * cp - 1; }

  planner::AttentionTime attention(
      const Training& training,
      const Layout& layout,
      int64_t window) const override {
    if (kernel == Attention::kMaterialized)
      return materialized(training, layout);
    const int generation =
        static_cast<int>(kernel) - static_cast<int>(Attention::kFlash1);
    return planner::flash_attention(
        training,
        layout,
        window,
        static_cast<machine::AttentionKernel>(generation));
  }

  // Scores of all pairs in memory: two batched products each way, the softmax
  // and its dropout.
  planner::AttentionTime materialized(
      const Training& training,
      const Layout& layout) const {
    constexpr double kElement = 2;
    const planner::ModelShape& shape = training.shape;
    const machine::DeviceTime device(
        training.machine.device, training.constants);
    const auto product = [&](const machine::Product& sizes) {
      return device.product(sizes, machine::ProductDtype::kBf16);
    };
    const int64_t t = training.batch.sequence_tokens;
    const int64_t queries = t / layout.dims.cp;
    const int64_t heads = layout.micro_batch * shape.heads / layout.dims.tp;
    const machine::Product scores = {queries, t, shape.head_dim, heads};
    const machine::Product values = {queries, shape.head_dim, t, heads};
    const machine::Product key_gradient = {t, shape.head_dim, queries, heads};
    const double elements = elementwise_passes * static_cast<double>(heads) *
                            static_cast<double>(queries) *
                            static_cast<double>(t);
    const double mask = shape.mask_bytes;
    const double dropout = mask > 0 ? 2 * kElement + mask : 0;
    return {
        .forward = product(scores) + product(values) +
                   device.elementwise(2 * kElement * elements) +
                   device.elementwise(dropout * elements),
        .backward = product(scores) + product(values) +
                    2 * product(key_gradient) +
                    device.elementwise_backward(3 * kElement * elements) +
                    device.elementwise_backward(dropout * elements)};
  }

  // The softmax's output; its dropout's output and mask.
  double kept_score_bytes(const Training& training, const Layout& layout)
      const override {
    if (kernel != Attention::kMaterialized)
      return Program::kept_score_bytes(training, layout);
    const double heads =
        static_cast<double>(training.shape.heads) / layout.dims.tp;
    const double mask = training.shape.mask_bytes;
    return heads * planner::local_tokens(training, layout) *
           static_cast<double>(training.batch.sequence_tokens) *
           (mask > 0 ? 4 + mask : 2);
  }

  // The transfers are split into tp pieces; all but the first overlap with
  // computation.
  double exposed_regions(
      const Training& training,
      const Layout& layout,
      double seconds,
      double products) const override {
    if (tensor_parallel == TensorParallel::kExposed)
      return seconds;
    const int tp = layout.dims.tp;
    return seconds / tp +
           planner::exposed_beside(
               training.constants, seconds * (tp - 1) / tp, products);
  }

  // The new gradient is read in the products' 2 bytes, the sum is read and
  // written. The first micro-batch's gradient is taken as it is. From zero
  // stage 2 on the sum is sharded, and adding to it is part of the scatter.
  double accumulation(
      const Training& training,
      const Layout& layout,
      int64_t parameters) const override {
    const int64_t m = planner::micro_batches(layout, training.batch);
    if (adds == Accumulation::kInProduct || m == 1 || layout.zero_stage >= 2)
      return 0;
    const machine::DeviceTime device(
        training.machine.device, training.constants);
    const double bytes = static_cast<double>(parameters) / layout.dims.tp *
                         (2 + 2.0 * training.precision.gradient_bytes);
    return device.memory(bytes) * static_cast<double>(m - 1) /
           static_cast<double>(m);
  }

  double transfer(const Training& training, const Layout& layout)
      const override {
    const int tp = layout.dims.tp;
    if (transfer_pieces == TransferPieces::kWhole ||
        layout.tokens == TokenLayout::kSharded || tp == 1)
      return Program::transfer(training, layout);
    const double bytes = planner::hidden_bytes(training, layout);
    return machine::send_seconds(
               training.machine,
               training.place(layout.dims, Axis::kPp),
               bytes / tp) +
           machine::sampled_seconds(
               training.machine,
               training.place(layout.dims, Axis::kTp),
               machine::Collective::kAllGather,
               bytes);
  }

  // By broadcasts: every rank in turn sends its n-th part to the others, a
  // source alone on a card.
  double gather_seconds(
      const Training& training,
      const machine::GroupPlace& owners,
      double bytes) const override {
    if (weight_gather == WeightGather::kAllGather || owners.ranks == 1)
      return Program::gather_seconds(training, owners, bytes);
    const machine::Machine& machine = training.machine;
    const double intra = machine.intra.bytes_per_s * machine.intra.efficiency;
    const double card = machine.inter.bytes_per_s * machine.inter.efficiency /
                        machine.cards_per_node;
    const double hops = (owners.ranks_per_node - 1) * machine.intra.latency_s +
                        std::log2(static_cast<double>(owners.nodes())) *
                            machine.inter.latency_s;
    return bytes / (owners.nodes() > 1 ? std::min(card, intra) : intra) +
           owners.ranks * (machine::kLaunchSeconds + hops);
  }

  int stride(const ParallelDims& dims, Axis axis) const override {
    if (rank_order == RankOrder::kPpDpCpTp && axis == Axis::kPp)
      return dims.tp * dims.cp * dims.dp;
    if (rank_order == RankOrder::kPpDpCpTp && axis == Axis::kDp)
      return dims.tp * dims.cp;
    return Program::stride(dims, axis);
  }
};

}  // namespace brigade::bench
