#include "brigade/context_parallel/ring_call.h"

#include <algorithm>

#include "brigade/ops/rotary.h"

namespace brigade {

using ops::PositionRange;
using torch::Tensor;

namespace {

// The positions of the local tokens `range` of a rank that holds `chunks`.
std::vector<PositionRange> positions_of(
    const std::vector<TokenRange>& chunks,
    const TokenRange& range) {
  std::vector<PositionRange> positions;
  int64_t local = 0;
  for (const TokenRange& chunk : chunks) {
    const int64_t begin = std::max(range.begin, local);
    const int64_t end = std::min(range.end, local + chunk.size());
    if (begin < end)
      positions.push_back({chunk.begin + begin - local, end - begin});
    local += chunk.size();
  }
  return positions;
}

}  // namespace

Tensor tokens(const Tensor& x, const TokenRange& range, int64_t dim) {
  return x.narrow(dim, range.begin, range.size());
}

Tensor empty_by_heads(
    at::IntArrayRef sizes,
    const torch::TensorOptions& options) {
  return torch::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options)
      .transpose(1, 2);
}

RingCall::RingCall(
    CommunicatorPtr ring,
    RingAttentionOptions options,
    int64_t local_tokens)
    : ring_(std::move(ring)),
      options_(std::move(options)),
      plan_{
          .sequence_tokens = local_tokens * ring_->size(),
          .ring_size = ring_->size(),
          .ring_rank = ring_->rank(),
          .causal = options_.attention.causal,
          .sliding_window = options_.attention.sliding_window},
      steps_(plan_ring(plan_)) {
  for (const RingStep& step : steps_)
    travelling_.push_back(travelling_tokens(plan_, step.source));
}

std::vector<int64_t> RingCall::block_sizes(const Tensor& k, int i) const {
  const int64_t tokens_numel = travelling_[static_cast<size_t>(i)].size();
  return {2, k.size(0), k.size(2), tokens_numel, k.size(3)};
}

RingBlock RingCall::own_block(const Tensor& k, const Tensor& v) const {
  const TokenRange& range = own_travelling();
  RingBlock block{torch::empty(block_sizes(k, 0), k.options())};
  ops::rotate_into(block.keys(), tokens(k, range), rotary(range), kernels());
  ops::rotate_into(block.values(), tokens(v, range), std::nullopt, kernels());
  return block;
}

TokenRange RingCall::keys_in_block(int i) const {
  const int64_t first = travelling_[static_cast<size_t>(i)].begin;
  return {step(i).keys.begin - first, step(i).keys.end - first};
}

ops::AttentionOptions RingCall::attention(int i, torch::ScalarType out_dtype)
    const {
  const auto positions = [&](int rank, const TokenRange& range) {
    return positions_of(
        sequence_chunks(plan_.sequence_tokens, plan_.ring_size, rank), range);
  };
  const TokenRange& queries = step(i).queries;
  ops::AttentionOptions result = options_.attention;
  result.query_positions = positions(ring_->rank(), queries);
  result.key_positions = positions(step(i).source, step(i).keys);
  if (result.document_starts.defined())
    result.document_starts = tokens(result.document_starts, queries);
  result.query_rotary = rotary(queries);
  if (i == 0)
    result.key_rotary = rotary(step(i).keys);
  else
    result.keys_are_rotated = true;
  result.out_dtype = out_dtype;
  return result;
}

std::optional<ops::RotaryTable> RingCall::rotary(
    const TokenRange& range) const {
  const auto& table = options_.attention.query_rotary;
  if (!table)
    return std::nullopt;
  return ops::RotaryTable{
      tokens(table->cos, range, 0), tokens(table->sin, range, 0)};
}

void RingCall::computed(int step) const {
  if (options_.on_step_computed)
    options_.on_step_computed(step);
}

}  // namespace brigade
