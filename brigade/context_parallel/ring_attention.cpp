#include "brigade/context_parallel/ring_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "brigade/context_parallel/merge_partials.h"
#include "brigade/context_parallel/ring_exchange.h"
#include "brigade/context_parallel/ring_plan.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"

namespace brigade {
namespace {

using ops::AttentionGradients;
using ops::AttentionOptions;
using ops::AttentionResult;
using ops::PositionRange;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "ring_attention";
constexpr int kBlockTag = 1;
constexpr int kGradientTag = 2;

Tensor tokens(const Tensor& x, const TokenRange& range, int64_t dim = 1) {
  return x.narrow(dim, range.begin, range.size());
}

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

// One call of ring_attention: what its forward and its backward go by.
struct RingCall {
  CommunicatorPtr ring;
  RingAttentionOptions options;
  int64_t sequence_tokens = 0;
  std::vector<RingStep> steps;

  int last_step() const { return ring->size() - 1; }

  AttentionOptions options_of(const RingStep& step, torch::ScalarType partial)
      const {
    const auto positions = [&](int rank, const TokenRange& range) {
      return positions_of(
          sequence_chunks(sequence_tokens, ring->size(), rank), range);
    };
    AttentionOptions result = options.attention;
    result.query_positions = positions(ring->rank(), step.queries);
    result.key_positions = positions(step.source, step.keys);
    if (result.document_starts.defined())
      result.document_starts = tokens(result.document_starts, step.queries);
    result.out_dtype = partial;
    return result;
  }

  void computed(int step) const {
    if (options.on_step_computed)
      options.on_step_computed(step);
  }
};

// The dtype in which partial results are added up.
torch::ScalarType partial_dtype(const Tensor& q) {
  return q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

AttentionResult forward_round(
    const RingCall& call,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  RingExchange exchange(call.ring, kBlockTag);
  Tensor block = torch::stack({k, v});  // [2, B, T/R, Hkv, D]
  AttentionResult whole;
  for (int i = 0; i <= call.last_step(); ++i) {
    const RingStep& step = call.steps[static_cast<size_t>(i)];
    if (i < call.last_step())
      exchange.start(block);
    if (!step.is_hidden()) {
      const AttentionResult part = ops::attention_forward(
          tokens(q, step.queries),
          tokens(block[0], step.keys),
          tokens(block[1], step.keys),
          call.options_of(step, partial_dtype(q)));
      if (i == 0)  // a token sees itself, so the first step has all queries
        whole = part;
      else
        merge_partials(
            {tokens(whole.out, step.queries),
             tokens(whole.lse, step.queries, 2)},
            part);
    }
    call.computed(i);
    if (i < call.last_step())
      block = exchange.finish();
  }
  return whole;
}

// Backward of one step, of the gradients' whole.
struct Saved {
  Tensor dout;
  Tensor q;
  Tensor lse;
  Tensor delta;
};

AttentionGradients backward_step(
    const RingCall& call,
    const RingStep& step,
    const Saved& saved,
    const Tensor& block) {
  return ops::attention_backward(
      tokens(saved.dout, step.queries),
      tokens(saved.q, step.queries),
      tokens(block[0], step.keys),
      tokens(block[1], step.keys),
      tokens(saved.lse, step.queries, 2).contiguous(),
      tokens(saved.delta, step.queries, 2).contiguous(),
      call.options_of(step, partial_dtype(saved.q)));
}

// A block's gradient starts at the rank after its owner, follows the block
// round the ring one step behind, and ends at its owner, who adds its own part.
AttentionGradients backward_round(
    const RingCall& call,
    const Saved& saved,
    const Tensor& k,
    const Tensor& v) {
  RingExchange blocks(call.ring, kBlockTag);
  RingExchange gradients(call.ring, kGradientTag);
  Tensor block = torch::stack({k, v});
  AttentionGradients whole;
  for (int i = 0; i <= call.last_step(); ++i) {
    const RingStep& step = call.steps[static_cast<size_t>(i)];
    if (i < call.last_step())
      blocks.start(block);
    AttentionGradients part;
    if (!step.is_hidden())
      part = backward_step(call, step, saved, block);
    call.computed(i);
    if (i == 0) {
      whole = part;
    } else {
      if (!step.is_hidden())
        tokens(whole.dq, step.queries).add_(part.dq);
      // [2, B, T/R, Hkv, D], of the ranks before this one.
      Tensor block_grad =
          i == 1 ? torch::zeros(
                       block.sizes(),
                       block.options().dtype(partial_dtype(saved.q)))
                 : gradients.finish();
      if (!step.is_hidden()) {
        tokens(block_grad[0], step.keys).add_(part.dk);
        tokens(block_grad[1], step.keys).add_(part.dv);
      }
      gradients.start(block_grad);
    }
    if (i < call.last_step())
      block = blocks.finish();
  }
  const Tensor own = gradients.finish();
  whole.dk.add_(own[0]);
  whole.dv.add_(own[1]);
  return whole;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const RingCall& call) {
    ops::carry(context, call);
    const AttentionResult whole = forward_round(call, q, k, v);
    Tensor out = whole.out.to(q.scalar_type());
    context->save_for_backward({q, k, v, out, whole.lse});
    return out;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const torch::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const Tensor& q = saved[0];
    const Tensor dout = gradients[0].contiguous();
    const AttentionGradients whole = backward_round(
        ops::carried<RingCall>(context),
        {dout, q, saved[4], ops::attention_delta(dout, saved[3])},
        saved[1],
        saved[2]);
    return {
        whole.dq.to(q.scalar_type()),
        whole.dk.to(q.scalar_type()),
        whole.dv.to(q.scalar_type()),
        Tensor()};
  }
};

void check(
    const Communicator& ring,
    const Tensor& q,
    const Tensor& k,
    const AttentionOptions& options) {
  ops::require(
      options.query_positions.empty() && options.key_positions.empty(),
      kOp,
      "positions are given by the ring, but the options hold some");
  ops::require(
      !options.key_rotary,
      kOp,
      "queries and keys are the same tokens: give query_rotary alone");
  ops::require(
      q.dim() == 4 && k.dim() == 4 && q.size(1) == k.size(1),
      kOp,
      "q {} and k {}: expected [B, T/{}, heads, D] of the same tokens",
      ops::describe(q),
      ops::describe(k),
      ring.size());
  ops::require(
      q.size(1) % 2 == 0,
      kOp,
      "{} tokens a rank cannot be cut into two equal chunks; the sequence must "
      "be a multiple of {}",
      q.size(1),
      2 * ring.size());
}

}  // namespace

Tensor ring_attention(
    const CommunicatorPtr& ring,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const RingAttentionOptions& options) {
  // A ring of one passes nothing and merges nothing.
  if (ring->size() == 1)
    return ops::attention(q, k, v, options.attention).out;
  check(*ring, q, k, options.attention);
  RingCall call{ring, options, q.size(1) * ring->size(), {}};
  call.steps = plan_ring(
      {.sequence_tokens = call.sequence_tokens,
       .ring_size = ring->size(),
       .ring_rank = ring->rank(),
       .causal = options.attention.causal,
       .sliding_window = options.attention.sliding_window});
  if (!options.attention.query_rotary)
    return RingAttention::apply(q, k, v, call);
  // Once before the keys travel, not in each step.
  const auto [rotated_q, rotated_k] =
      ops::rotary(q, k, *options.attention.query_rotary);
  call.options.attention.query_rotary.reset();
  return RingAttention::apply(rotated_q, rotated_k, v, call);
}

}  // namespace brigade
