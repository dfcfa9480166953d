#include "brigade/context_parallel/ring_attention.h"

#include <utility>

#include "brigade/context_parallel/query_gradient.h"
#include "brigade/context_parallel/ring_call.h"
#include "brigade/context_parallel/ring_exchange.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade {
namespace {

using ops::AttentionGradients;
using ops::AttentionOptions;
using ops::AttentionResult;
using torch::Tensor;

constexpr const char* kOp = "ring_attention";
constexpr int kBlockTag = 1;
constexpr int kGradientTag = 2;

// The dtype in which partial results are added up.
torch::ScalarType partial_dtype(const Tensor& q) {
  return q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

struct ForwardRound {
  Tensor out;
  Tensor lse;
  Tensor last_block;  // of the next rank: backward begins with it
};

// The last step that sees something: the one that rounds the result.
int last_seen_step(const RingCall& call) {
  int last = call.last_step();
  while (call.step(last).is_hidden())
    --last;
  return last;
}

// to = from for the tokens of [B, T, ..] outside `range`.
void copy_outside(
    const Tensor& to,
    const Tensor& from,
    const TokenRange& range) {
  for (const TokenRange& rest :
       {TokenRange{0, range.begin}, TokenRange{range.end, to.size(1)}}) {
    if (rest.size() > 0)
      tokens(to, rest).copy_(tokens(from, rest));
  }
}

ForwardRound forward_round(
    const RingCall& call,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v) {
  RingExchange blocks(call.ring(), kBlockTag);
  const int last = call.last_step();
  blocks.expect(call.block_sizes(k, 1), k.options());
  RingBlock block = call.own_block(k, v);
  blocks.start(block.memory);
  // A token sees itself, so the first step has all queries.
  const torch::ScalarType partial = partial_dtype(q);
  const AttentionResult whole{
      empty_by_heads(q.sizes(), q.options().dtype(partial)),
      torch::empty(
          {q.size(0), q.size(2), q.size(1)}, q.options().dtype(partial))};
  ops::attention_forward_onto(whole, {}, {q, k, v}, call.attention(0, partial));
  call.computed(0);
  const Tensor out = torch::empty(q.sizes(), q.options());
  const int rounding = last_seen_step(call);
  if (rounding == 0)
    out.copy_(whole.out);
  for (int i = 1; i <= last; ++i) {
    block.memory = blocks.finish();
    if (i < last) {
      blocks.expect(call.block_sizes(k, i + 1), k.options());
      blocks.start(block.memory);
    }
    const TokenRange& queries = call.step(i).queries;
    if (queries.size() > 0) {
      const TokenRange keys = call.keys_in_block(i);
      const AttentionResult so_far{
          tokens(whole.out, queries), tokens(whole.lse, queries, 2)};
      ops::attention_forward_onto(
          {i == rounding ? tokens(out, queries) : so_far.out, so_far.lse},
          so_far,
          {tokens(q, queries),
           tokens(block.keys(), keys),
           tokens(block.values(), keys)},
          call.attention(i, partial));
      if (i == rounding)
        copy_outside(out, whole.out, queries);
    }
    call.computed(i);
  }
  return {out, whole.lse, block.memory};
}

// The data of the whole attention that the backward of each step needs.
struct Saved {
  Tensor dout;
  Tensor q;
  Tensor lse;
  Tensor delta;
};

void backward_step(
    const RingCall& call,
    int i,
    const Saved& saved,
    const Tensor& k,
    const Tensor& v,
    const AttentionGradients& into,
    const ops::QueryGradientPart& dq_so_far = {}) {
  const TokenRange& queries = call.step(i).queries;
  ops::attention_backward_into(
      into,
      dq_so_far,
      {.operands = {tokens(saved.q, queries), k, v},
       .dout = tokens(saved.dout, queries),
       .lse = tokens(saved.lse, queries, 2),
       .delta = tokens(saved.delta, queries, 2)},
      call.attention(i, partial_dtype(saved.q)));
}

// Blocks of other ranks, from the last one that forward received to the one
// before it: they move the other way round. A block's gradient starts at the
// first rank that has it here, follows it, and its last hop, to its owner,
// overlaps with the owner's own block.
AttentionGradients backward_round(
    const RingCall& call,
    const Saved& saved,
    const Tensor& k,
    const Tensor& v,
    RingBlock block) {
  RingExchange blocks(call.ring(), kBlockTag, RingDirection::kDown);
  RingExchange gradients(call.ring(), kGradientTag, RingDirection::kDown);
  const torch::ScalarType partial = partial_dtype(saved.q);
  const auto wide = k.options().dtype(partial);
  QueryGradient dq(call, saved.q, partial);
  const int last = call.last_step();
  for (int i = last; i > 0; --i) {
    if (i > 1) {
      blocks.expect(call.block_sizes(k, i - 1), k.options());
      blocks.start(block.memory);
    }
    if (i == last)
      gradients.expect(call.block_sizes(k, i - 1), k.options());
    const RingStep& step = call.step(i);
    const TokenRange keys = call.keys_in_block(i);
    // The first rank's part is what leaves; later ones are added to it.
    RingBlock gradient{
        torch::empty(call.block_sizes(k, i), i == last ? k.options() : wide)};
    if (!step.is_hidden()) {
      const Tensor dq_part = dq.take(step.queries);
      backward_step(
          call,
          i,
          saved,
          tokens(block.keys(), keys),
          tokens(block.values(), keys),
          {dq_part,
           tokens(gradient.keys(), keys),
           tokens(gradient.values(), keys)});
      dq.give(dq_part, step.queries);
    }
    call.computed(i);
    if (i == last) {
      for (const Tensor& half : {gradient.keys(), gradient.values()})
        clear_outside(half, step.is_hidden() ? TokenRange{} : keys);
    } else {
      constexpr int64_t kDim = RingBlock::kTokenDim;
      const Tensor part = gradient.memory;
      gradient.memory = gradients.finish();  // of the ranks before this one
      if (!step.is_hidden())
        tokens(gradient.memory, keys, kDim).add_(tokens(part, keys, kDim));
      gradients.expect(call.block_sizes(k, i - 1), k.options());
    }
    gradients.start(gradient.memory);
    if (i > 1)
      block.memory = blocks.finish();
  }
  const AttentionGradients whole =
      ops::empty_attention_gradients({saved.q, k, v}, saved.q.scalar_type());
  backward_step(call, 0, saved, k, v, whole, dq.sum());
  call.computed(0);
  const RingBlock others{gradients.finish()};
  const TokenRange& travelled = call.own_travelling();
  if (travelled.size() > 0) {
    ops::add_partial_gradient(
        tokens(whole.dk, travelled),
        others.keys(),
        call.rotary(travelled),
        call.kernels());
    ops::add_partial_gradient(
        tokens(whole.dv, travelled),
        others.values(),
        std::nullopt,
        call.kernels());
  }
  return whole;
}

// What forward leaves to backward besides its tensors.
struct Kept {
  RingCall call;
  // Backward's exchange receives into it, so only one backward is possible.
  Tensor last_block;
};

struct RingAttention : ops::OnceDifferentiable<RingAttention> {
  static constexpr const char* kName = "ring_attention";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const RingCall& call) {
    const auto [out, lse, last_block] = forward_round(call, q, k, v);
    context->save_for_backward({q, k, v, out, lse});
    ops::carry(context, Kept{call, last_block});
    return out;
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto& [call, last_block] = ops::carried<Kept>(context);
    ops::require(
        last_block.defined(),
        kOp,
        "backward was called twice; the block that forward ended with is kept "
        "for one backward, which receives others into its memory");
    const Tensor dout = gradients[0].contiguous();
    const AttentionGradients whole = backward_round(
        call,
        {dout,
         saved[0],
         saved[4],
         ops::attention_delta(dout, saved[3], call.kernels())},
        saved[1],
        saved[2],
        {std::exchange(last_block, Tensor())});
    return {whole.dq, whole.dk, whole.dv, Tensor()};
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
      "{} tokens per rank cannot be cut into two equal chunks; the sequence "
      "must "
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
  return RingAttention::apply(q, k, v, RingCall(ring, options, q.size(1)));
}

}  // namespace brigade
