// Ring attention against attention over the whole sequence on one rank.
#include "brigade/context_parallel/ring_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/topology/sequence_partition.h"
#include "tests/support/compare.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/reference_ops.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kBatch = 2;

struct Case {
  int ring = 1;
  int64_t tokens = 12;  // T
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 6;
  torch::ScalarType dtype = torch::kFloat;
  bool causal = true;
  std::optional<int64_t> window;
  bool documents = false;
  bool rotary = false;
};

std::string describe(const Case& c) {
  return fmt::format(
      "ring {} T {} heads {}/{} {} window {}{}{}{}",
      c.ring,
      c.tokens,
      c.heads,
      c.kv_heads,
      c10::toString(c.dtype),
      c.window.value_or(0),
      c.causal ? "" : " not causal",
      c.documents ? " documents" : "",
      c.rotary ? " rotary" : "");
}

// The sequence on one rank, computed in float32 by the plain twin.
struct Whole {
  Tensor q, k, v, dout;    // inputs, in the case's dtype
  Tensor out, dq, dk, dv;  // expected, float32
  Tensor document_starts;  // [B, T] or undefined
};

ops::RotaryTable table(const std::vector<int64_t>& positions, int64_t dim) {
  return ops::make_rotary_table(
      torch::tensor(positions, torch::kLong), dim, 100.0);
}

Whole make_whole(const Case& c) {
  torch::manual_seed(11);
  const auto random = [&](int64_t heads) {
    return torch::randn({kBatch, c.tokens, heads, c.head_dim}).to(c.dtype);
  };
  Whole whole{
      random(c.heads), random(c.kv_heads), random(c.kv_heads), random(c.heads)};
  ops::AttentionOptions options;
  options.causal = c.causal;
  options.sliding_window = c.window;
  if (c.documents) {
    // Documents of 5 tokens; of 3 in the second sequence.
    const Tensor place = torch::arange(c.tokens, torch::kLong);
    whole.document_starts =
        torch::stack({place - place % 5, place - place % 3});
    options.document_starts = whole.document_starts;
  }
  if (c.rotary)
    options.query_rotary = table(token_positions(c.tokens, 1, 0), c.head_dim);
  const auto leaf = [](const Tensor& x) {
    return x.to(torch::kFloat).clone().set_requires_grad(true);
  };
  const Tensor q = leaf(whole.q);
  const Tensor k = leaf(whole.k);
  const Tensor v = leaf(whole.v);
  const Tensor out = testing::reference::attention(q, k, v, options).out;
  out.backward(whole.dout.to(torch::kFloat));
  whole.out = out.detach();
  whole.dq = q.grad();
  whole.dk = k.grad();
  whole.dv = v.grad();
  return whole;
}

struct Ran {
  Tensor out, dq, dk, dv;
};

Ran run(
    const CommunicatorPtr& ring,
    const Case& c,
    const Whole& whole,
    RingAttentionOptions options = {}) {
  const auto positions = token_positions(c.tokens, ring->size(), ring->rank());
  const Tensor index = torch::tensor(positions, torch::kLong);
  const auto local = [&](const Tensor& x) { return x.index_select(1, index); };
  const auto leaf = [&](const Tensor& x) {
    return local(x).set_requires_grad(true);
  };
  options.attention.causal = c.causal;
  options.attention.sliding_window = c.window;
  if (c.documents)
    options.attention.document_starts = local(whole.document_starts);
  if (c.rotary)
    options.attention.query_rotary = table(positions, c.head_dim);
  const Tensor q = leaf(whole.q);
  const Tensor k = leaf(whole.k);
  const Tensor v = leaf(whole.v);
  const Tensor out = ring_attention(ring, q, k, v, options);
  out.backward(local(whole.dout));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

void check_case(const Case& c) {
  const Whole whole = make_whole(c);
  const double limit = testing::tolerance(c.dtype);
  testing::run_ranks(c.ring, [&](const CommunicatorPtr& ring) {
    const Tensor index = torch::tensor(
        token_positions(c.tokens, ring->size(), ring->rank()), torch::kLong);
    const auto local = [&](const Tensor& x) {
      return x.index_select(1, index);
    };
    const Ran ran = run(ring, c, whole);
    const std::string what =
        fmt::format("{} rank {} ", describe(c), ring->rank());
    EXPECT_EQ(ran.out.scalar_type(), c.dtype) << what;
    testing::expect_close(ran.out, local(whole.out), limit, what + "out");
    testing::expect_close(ran.dq, local(whole.dq), limit, what + "dq");
    testing::expect_close(ran.dk, local(whole.dk), limit, what + "dk");
    testing::expect_close(ran.dv, local(whole.dv), limit, what + "dv");
  });
}

TEST(RingAttention, EqualsOneRankForAnyRingAndChunk) {
  for (int ring : {1, 2, 3, 4}) {
    for (int64_t chunk : {1, 3, 5})
      check_case({.ring = ring, .tokens = 2 * ring * chunk});
  }
}

TEST(RingAttention, EqualsOneRankInBfloat16) {
  for (int ring : {1, 2, 3, 4})
    check_case({.ring = ring, .tokens = 14L * ring, .dtype = torch::kBFloat16});
}

TEST(RingAttention, ServesEveryRatioOfQueryToKvHeads) {
  for (int64_t kv_heads : {1, 2, 3, 6})
    check_case({.ring = 3, .tokens = 18, .heads = 6, .kv_heads = kv_heads});
}

TEST(RingAttention, SeesAWindowAcrossRanks) {
  for (int64_t window : {2, 5, 11, 100}) {
    for (int ring : {2, 3, 4})
      check_case({.ring = ring, .tokens = 24, .window = window});
  }
}

TEST(RingAttention, ReturnsTheValueOfATokenThatSeesOnlyItself) {
  const Case c{.ring = 3, .tokens = 18, .heads = 2, .window = 1};
  const Whole whole = make_whole(c);
  testing::run_ranks(3, [&](const CommunicatorPtr& ring) {
    const Tensor index =
        torch::tensor(token_positions(18, 3, ring->rank()), torch::kLong);
    const Ran ran = run(ring, c, whole);
    // Equal up to one rounding: exp(score - lse) need not be exactly 1.
    const auto is_close = [&](const Tensor& a, const Tensor& b) {
      return torch::allclose(a, b.index_select(1, index), 1e-6, 1e-7);
    };
    EXPECT_TRUE(is_close(ran.out, whole.v));
    EXPECT_TRUE(is_close(ran.dv, whole.dout));
    EXPECT_LE(ran.dq.abs().max().item<double>(), 1e-5);
  });
}

TEST(RingAttention, StopsAtDocumentsThatSpanRanks) {
  for (int ring : {2, 3, 4}) {
    check_case({.ring = ring, .tokens = 24, .documents = true});
    check_case({.ring = ring, .tokens = 24, .window = 4, .documents = true});
  }
}

TEST(RingAttention, RotatesByPositionsInTheWholeSequence) {
  for (int ring : {1, 2, 3})
    check_case({.ring = ring, .tokens = 12, .rotary = true});
}

TEST(RingAttention, ServesBidirectionalModels) {
  check_case({.ring = 3, .tokens = 18, .causal = false});
}

TEST(RingAttention, EqualsAttentionBitForBitOnOneRank) {
  for (auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const Case c{.tokens = 7, .dtype = dtype};
    const Whole whole = make_whole(c);
    testing::run_ranks(1, [&](const CommunicatorPtr& ring) {
      EXPECT_TRUE(torch::equal(
          run(ring, c, whole).out,
          ops::attention(whole.q, whole.k, whole.v).out));
      EXPECT_EQ(ring->launches(), 0);
    });
  }
}

TEST(RingAttention, WorksWithoutAutograd) {
  const Case c{.ring = 2};
  const Whole whole = make_whole(c);
  testing::run_ranks(2, [&](const CommunicatorPtr& ring) {
    const Tensor index =
        torch::tensor(token_positions(12, 2, ring->rank()), torch::kLong);
    const torch::NoGradGuard no_grad;
    const Tensor out = ring_attention(
        ring,
        whole.q.index_select(1, index),
        whole.k.index_select(1, index),
        whole.v.index_select(1, index));
    testing::expect_close(out, whole.out.index_select(1, index), 1e-5, "out");
  });
}

// A rank's sends in order: how many elements, and whether they are gradients.
struct Sent {
  int64_t numel;
  bool is_gradient;
  int peer;
  bool operator==(const Sent&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Sent& sent) {
  return out << sent.numel << (sent.is_gradient ? " gradients" : " k, v")
             << " to " << sent.peer;
}

// Forward sends one block per step. Backward does too, except in the last step,
// and sends a gradient after each.
std::vector<Sent> sent_by(const Communicator& ring) {
  const int forward = ring.size() - 1;
  const int last = 3 * forward - 2;
  std::vector<Sent> sent;
  for (const CollectiveRecord& record : ring.records()) {
    if (record.op != Collective::kSend)
      continue;
    const int place = static_cast<int>(sent.size());
    const bool is_gradient =
        place >= forward && (place == last || (place - forward) % 2 == 1);
    sent.push_back({record.numel, is_gradient, record.peer});
  }
  return sent;
}

TEST(RingAttention, SendsKvHeadsUnexpandedAllInTheirOwnDtype) {
  const Case c{
      .ring = 3,
      .tokens = 18,
      .heads = 6,
      .kv_heads = 2,
      .dtype = torch::kBFloat16};
  const Whole whole = make_whole(c);
  const int64_t token_numel = 2 * kBatch * 2 * c.head_dim;
  testing::run_ranks(3, [&](const CommunicatorPtr& ring) {
    run(ring, c, whole);
    const int rank = ring->rank();
    // No other rank sees the second chunk (3 tokens) of rank 0's block.
    const auto numel = [&](int owner) {
      return token_numel * ((owner + 3) % 3 == 0 ? 3 : 6);
    };
    const int up = (rank + 1) % 3;
    const int down = (rank + 2) % 3;
    EXPECT_EQ(
        sent_by(*ring),
        (std::vector<Sent>{
            // Forward sends the own block, then the one before.
            {numel(rank), false, up},
            {numel(rank - 1), false, up},
            // Backward returns the block that came last, then its gradient and
            // that of the block before it.
            {numel(rank + 1), false, down},
            {numel(rank + 1), true, down},
            {numel(rank + 2), true, down}}));
    EXPECT_EQ(ring->records().size(), 2U * 5U);
    for (const CollectiveRecord& record : ring->records())
      EXPECT_EQ(record.dtype, torch::kBFloat16);
  });
}

TEST(RingAttention, SendsNoKeysInBackwardOnTwoRanks) {
  const Case c{.ring = 2, .dtype = torch::kBFloat16};
  const Whole whole = make_whole(c);
  const int64_t token_numel = 2 * kBatch * c.kv_heads * c.head_dim;
  testing::run_ranks(2, [&](const CommunicatorPtr& ring) {
    run(ring, c, whole);
    const int other = 1 - ring->rank();
    const auto numel = [&](int owner) {
      return token_numel * (owner == 0 ? 3 : 6);
    };
    EXPECT_EQ(
        sent_by(*ring),
        (std::vector<Sent>{
            {numel(ring->rank()), false, other}, {numel(other), true, other}}));
  });
}

// The messages launched before each step's compute ended run under it.
TEST(RingAttention, LaunchesEveryExchangeBeforeAComputeThatHidesIt) {
  for (const int size : {2, 3, 4}) {
    const Case c{.ring = size, .tokens = 6L * size, .dtype = torch::kBFloat16};
    const Whole whole = make_whole(c);
    testing::run_ranks_with_store(size, [&](int rank, const StorePtr& store) {
      const auto recorder = std::make_shared<FlightRecorder>(rank);
      const ProcessMesh mesh(
          {.cp = size},
          rank,
          store,
          {.timeout = testing::kNever,
           .check_collectives = true,
           .max_records = 1000,
           .flight_recorder = recorder});
      const CommunicatorPtr ring = mesh.axis(Axis::kCp);
      struct Computed {
        int step;
        int64_t blocks;     // sent so far
        int64_t gradients;  // sent so far
        int64_t under_way;  // messages not waited for yet
        bool operator==(const Computed&) const = default;
      };
      std::vector<Computed> computed;
      RingAttentionOptions options;
      options.on_step_computed = [&](int step) {
        Computed now{step, 0, 0, 0};
        for (const auto& operation : recorder->recording("").operations)
          now.under_way += operation.finished_ns == 0 ? 1 : 0;
        for (const Sent& sent : sent_by(*ring))
          ++(sent.is_gradient ? now.gradients : now.blocks);
        computed.push_back(now);
      };
      run(ring, c, whole, options);
      std::vector<Computed> expected;
      const int last = size - 1;
      for (int step = 0; step <= last; ++step)
        expected.push_back(
            {step, std::min(step + 1, last), 0, step < last ? 2 : 0});
      // Backward ends with the own block, under which the last gradient
      // returns.
      for (int step = last; step >= 0; --step) {
        const int64_t blocks = last + std::min(last - step + 1, last - 1);
        const int64_t gradients = last - step;
        // The first step only receives a gradient.
        expected.push_back(
            {step,
             blocks,
             gradients,
             (step > 1 ? 2 : 0) + (step == last ? 1 : 2)});
      }
      EXPECT_TRUE(computed == expected) << "ring " << size;
    });
  }
}

// Rows that no key of a block can see must not turn the merge into NaN, and a
// gradient must not travel through -infinity.
TEST(RingAttention, StaysFiniteWhereDocumentsHideWholeBlocks) {
  Case c{.ring = 4, .tokens = 24, .documents = true};
  const Whole whole = make_whole(c);
  testing::run_ranks(4, [&](const CommunicatorPtr& ring) {
    const Ran ran = run(ring, c, whole);
    for (const Tensor& x : {ran.out, ran.dq, ran.dk, ran.dv})
      EXPECT_TRUE(torch::isfinite(x).all().item<bool>());
  });
}

TEST(RingAttention, AccumulatesOverTwoBackwards) {
  const Case c{.ring = 2, .tokens = 12};
  const Whole whole = make_whole(c);
  testing::run_ranks(2, [&](const CommunicatorPtr& ring) {
    const Tensor index =
        torch::tensor(token_positions(12, 2, ring->rank()), torch::kLong);
    const auto local = [&](const Tensor& x) {
      return x.index_select(1, index);
    };
    const Tensor k = local(whole.k).set_requires_grad(true);
    for (int i = 0; i < 2; ++i)
      ring_attention(ring, local(whole.q), k, local(whole.v))
          .backward(local(whole.dout));
    testing::expect_close(k.grad(), 2 * local(whole.dk), 1e-5, "dk");
  });
}

// With four or more ranks the first backward overwrites the block that it began
// with, so gradients of a second would be wrong.
TEST(RingAttention, RefusesASecondBackwardOfOneGraph) {
  for (const int size : {2, 4}) {
    testing::run_ranks(size, [](const CommunicatorPtr& ring) {
      const auto leaf = [] {
        return torch::ones({1, 4, 2, 4}).set_requires_grad(true);
      };
      const Tensor out = ring_attention(ring, leaf(), leaf(), leaf());
      const Tensor dout = torch::ones_like(out);
      out.backward(dout, /*retain_graph=*/true);
      EXPECT_THAT(
          [&] { out.backward(dout); },
          ThrowsMessage<Error>(
              HasSubstr("[ring_attention] backward was called twice")));
    });
  }
}

TEST(RingAttention, RefusesTokensThatCannotBeTwoChunks) {
  testing::run_ranks(2, [](const CommunicatorPtr& ring) {
    const Tensor x = torch::zeros({1, 5, 2, 4});
    EXPECT_THAT(
        [&] { ring_attention(ring, x, x, x); },
        ThrowsMessage<Error>(HasSubstr(
            "5 tokens per rank cannot be cut into two equal chunks; the "
            "sequence must be a multiple of 4")));
  });
}

TEST(RingAttention, RefusesPositionsOfTheCaller) {
  testing::run_ranks(2, [](const CommunicatorPtr& ring) {
    const Tensor x = torch::zeros({1, 4, 2, 4});
    RingAttentionOptions options;
    options.attention.query_positions = {{0, 4}};
    EXPECT_THROW(ring_attention(ring, x, x, x, options), Error);
  });
}

}  // namespace
}  // namespace brigade
