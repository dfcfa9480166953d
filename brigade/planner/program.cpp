#include "brigade/planner/program.h"

#include <algorithm>

#include "brigade/machine/device_time.h"
#include "brigade/planner/layer_time.h"
#include "brigade/planner/training.h"
#include "brigade/topology/sequence_partition.h"

namespace brigade::planner {

AttentionTime Program::attention(
    const Training& training,
    const Layout& layout,
    int64_t window) const {
  return flash_attention(
      training, layout, window, machine::AttentionKernel::kFlash2);
}

double Program::kept_score_bytes(const Training& training, const Layout& layout)
    const {
  const double heads =
      static_cast<double>(training.shape.heads) / layout.dims.tp;
  return 4 * heads * local_tokens(training, layout);
}

// kernels/cpu/cross_entropy_call.cpp: 1,024 tokens; of a head that ranks share
// a quarter of the tokens, from 256 to 1,024.
double Program::tokens_with_logits(const Layout& layout, double tokens) const {
  constexpr double kFewest = 256;
  constexpr double kMost = 1024;
  return std::min(
      tokens,
      layout.dims.tp > 1 ? std::clamp(tokens / 4, kFewest, kMost) : kMost);
}

double Program::transfer(const Training& training, const Layout& layout) const {
  return send_seconds(
      training.machine,
      training.place(layout.dims, Axis::kPp),
      hidden_bytes(training, layout));
}

double Program::gather_seconds(
    const Training& training,
    const machine::GroupPlace& owners,
    double bytes) const {
  return sampled_seconds(
      training.machine, owners, machine::Collective::kAllGather, bytes);
}

int Program::stride(const ParallelDims& dims, Axis axis) const {
  int stride = 1;
  for (auto faster = kAxes.rbegin(); *faster != axis; ++faster)
    stride *= dims[*faster];
  return stride;
}

AttentionTime flash_attention(
    const Training& training,
    const Layout& layout,
    int64_t window,
    machine::AttentionKernel kernel) {
  const machine::DeviceTime device(training.machine.device, training.constants);
  const machine::AttentionWork work = {
      .batch = layout.micro_batch,
      .queries = tokens_per_rank(training.batch.sequence_tokens, layout.dims),
      .keys = mean_keys(training.batch.sequence_tokens, window),
      .heads = training.shape.heads / layout.dims.tp,
      .head_dim = training.shape.head_dim};
  return {
      device.attention_forward(work, kernel),
      device.attention_backward(work, kernel)};
}

machine::GroupPlace Training::place(const ParallelDims& dims, Axis axis) const {
  const int apart = machine.devices_per_node / program->stride(dims, axis);
  return {dims[axis], std::clamp(apart, 1, dims[axis])};
}

machine::GroupPlace Training::place_dp_cp(const ParallelDims& dims) const {
  machine::GroupPlace all;
  for (const Axis axis : kReplicaAxes) {
    const machine::GroupPlace along = place(dims, axis);
    all.ranks *= along.ranks;
    all.ranks_per_node *= along.ranks_per_node;
  }
  return all;
}

machine::GroupPlace
Training::place_replicas(const ParallelDims& dims, int apart, int count) const {
  int on_first_node = 0;
  for (int i = 0; i < count; ++i) {
    int replica = i * apart;
    int64_t rank = 0;
    for (auto axis = kReplicaAxes.rbegin(); axis != kReplicaAxes.rend();
         ++axis) {
      rank += int64_t{replica % dims[*axis]} * program->stride(dims, *axis);
      replica /= dims[*axis];
    }
    on_first_node += rank < machine.devices_per_node ? 1 : 0;
  }
  return {count, std::max(1, on_first_node)};
}

machine::GroupPlace Training::place_expert_parallel(
    const ParallelDims& dims) const {
  return place_replicas(dims, 1, dims.ep);
}

machine::GroupPlace Training::place_expert_replicas(
    const ParallelDims& dims) const {
  return place_replicas(dims, dims.ep, dims.replicas() / dims.ep);
}

double local_tokens(const Training& training, const Layout& layout) {
  return static_cast<double>(layout.micro_batch) *
         static_cast<double>(training.batch.sequence_tokens) /
         layout.dims.sequence_parts();
}

double hidden_bytes(const Training& training, const Layout& layout) {
  const double cut =
      layout.tokens == TokenLayout::kSharded ? layout.dims.tp : 1;
  return training.precision.activation_bytes * local_tokens(training, layout) *
         static_cast<double>(training.shape.hidden) / cut;
}

}  // namespace brigade::planner
