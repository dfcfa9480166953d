// Attention backward of one key head and its query heads, on one thread.
// Operands are packed once a head; then the mask's blocks pass by. It works on
// transposes, [keys, queries], so that a query's lse and delta lie along a
// vector and P^T and dS^T are left operands as they are made:
// dV += P^T dO, dK += dS^T Q, dQ^T += K^T dS^T.
#include <algorithm>
#include <type_traits>

#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/attention_backward_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
struct BackwardBuffers {
  T* key_rows;     // [keys, depth]
  T* value_rows;   // [keys, depth]
  T* keys_t;       // [width, keys]
  float* dkeys;    // [keys, width]
  float* dvalues;  // [keys, width]
  T* rows;         // a query head's rows, gathered
  T* q_columns;    // packed Q^T
  T* q_rows;       // packed Q
  T* dout_columns;
  T* dout_rows;
  float* dq_t;     // [width, queries]
  float* dq;       // [queries, width]
  float* lse;      // [queries]
  float* delta;    // [queries]
  int32_t* first;  // [queries]
  int32_t* end;    // [queries]
  float* scores;   // [keys of a block, queries of a block]
  float* dscores;
  T* p;
  T* ds;
  T* ds_packed;
};

// Whether the scores are bounded (AttentionShape::soft_cap).
enum class Scores { kFree, kCapped };

// P^T and dS^T of a block from S^T and dP^T; dS^T also packed as a right
// operand. A column is a query.
template <Scores kScores, typename T>
void softmax_gradient(
    const BackwardBuffers<T>& b,
    float scale,
    float soft_cap,
    int64_t first_key,
    int64_t keys,  // padded
    int64_t first_query,
    int64_t queries,  // padded
    bool masked) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  constexpr int64_t kStride = kBackwardQueryBlock;
  constexpr int64_t kGroup = 4 / sizeof(T);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto factor = hn::Set(df, scale);
  const auto exponent = hn::Set(df, scale * kScoreScale<T>);
  // Read where scores are capped.
  const auto inner = hn::Set(df, scale / soft_cap);
  const auto outer = hn::Set(df, soft_cap * kScoreScale<T>);
  for (int64_t column = 0; column < queries; column += lanes) {
    const int64_t query = first_query + column;
    const auto lse =
        hn::Mul(hn::LoadU(df, b.lse + query), hn::Set(df, kScoreScale<T>));
    const auto delta = hn::LoadU(df, b.delta + query);
    const auto low = hn::LoadU(di, b.first + query);
    const auto high = hn::LoadU(di, b.end + query);
    T* panel = b.ds_packed + column / kPanel * kKeyBlock * kPanel +
               column % kPanel * kGroup;
    const auto one = [&](int64_t row, VF& p, VF& ds) HWY_ATTR {
      const int64_t at = row * kStride + column;
      const auto score = hn::LoadU(df, b.scores + at);
      const auto dscore = hn::Sub(hn::LoadU(df, b.dscores + at), delta);
      if constexpr (kScores == Scores::kFree) {
        p = power<T>(hn::MulSub(score, exponent, lse));
        ds = hn::Mul(hn::Mul(p, dscore), factor);
      } else {
        const auto tanh = hn::Tanh(df, hn::Mul(score, inner));
        p = power<T>(hn::MulSub(tanh, outer, lse));
        const auto slope = hn::NegMulAdd(tanh, tanh, hn::Set(df, 1.0F));
        ds = hn::Mul(hn::Mul(p, dscore), hn::Mul(factor, slope));
      }
      if (masked) {
        const auto key = hn::Set(di, static_cast<int32_t>(first_key + row));
        const auto inside =
            hn::RebindMask(df, hn::AndNot(hn::Lt(key, low), hn::Lt(key, high)));
        p = hn::IfThenElseZero(inside, p);
        ds = hn::IfThenElseZero(inside, ds);
      }
    };
    for (int64_t row = 0; row < keys; row += 2) {
      VF p0;
      VF p1;
      VF ds0;
      VF ds1;
      one(row, p0, ds0);
      one(row + 1, p1, ds1);
      const int64_t even = row * kStride + column;
      const int64_t odd = even + kStride;
      if constexpr (std::is_same_v<T, float>) {
        hn::StoreU(p0, df, b.p + even);
        hn::StoreU(p1, df, b.p + odd);
        hn::StoreU(ds0, df, b.ds + even);
        hn::StoreU(ds1, df, b.ds + odd);
        hn::StoreU(ds0, df, panel + row * kPanel);
        hn::StoreU(ds1, df, panel + (row + 1) * kPanel);
      } else {
        store_low_halves(hn::ShiftRight<16>(round_to_bf16(p0)), b.p + even);
        store_low_halves(hn::ShiftRight<16>(round_to_bf16(p1)), b.p + odd);
        store_bf16_pair(
            ds0,
            ds1,
            b.ds + even,
            b.ds + odd,
            reinterpret_cast<uint32_t*>(panel + row * kPanel));
      }
    }
  }
}

template <typename T>
void backward_block(
    const AttentionShape& shape,
    const Padded& padded,
    const BackwardBuffers<T>& b,
    int64_t key,
    int64_t query,
    const Seen& seen) {
  constexpr int64_t kStride = kBackwardQueryBlock;
  // The last block ends with what some query sees.
  const int64_t keys =
      std::min(kKeyBlock, round_up(seen.highest - key, kPanel));
  const int64_t queries = std::min(kBackwardQueryBlock, padded.queries - query);
  multiply(
      b.key_rows + key * padded.depth,
      padded.depth,
      b.q_columns + query * padded.depth,
      kPanel * padded.depth,
      b.scores,
      kStride,
      keys,
      queries,
      padded.depth,
      false);
  multiply(
      b.value_rows + key * padded.depth,
      padded.depth,
      b.dout_columns + query * padded.depth,
      kPanel * padded.depth,
      b.dscores,
      kStride,
      keys,
      queries,
      padded.depth,
      false);
  const bool whole = seen.latest <= key && seen.nearest >= key + keys;
  const auto make_gradient = shape.soft_cap > 0
                                 ? &softmax_gradient<Scores::kCapped, T>
                                 : &softmax_gradient<Scores::kFree, T>;
  make_gradient(
      b, shape.scale, shape.soft_cap, key, keys, query, queries, !whole);
  multiply(
      b.p,
      kStride,
      b.dout_rows + query * kPanel,
      kPanel * padded.queries,
      b.dvalues + key * padded.width,
      padded.width,
      keys,
      padded.width,
      queries,
      true);
  multiply(
      b.ds,
      kStride,
      b.q_rows + query * kPanel,
      kPanel * padded.queries,
      b.dkeys + key * padded.width,
      padded.width,
      keys,
      padded.width,
      queries,
      true);
  multiply(
      b.keys_t + key,
      padded.keys,
      b.ds_packed,
      kPanel * kKeyBlock,
      b.dq_t + query,
      padded.queries,
      padded.width,
      queries,
      keys,
      true);
}

// Gathers and packs a query head and its incoming gradient.
template <typename T>
void load_head(
    const AttentionBackward<T>& args,
    const Padded& padded,
    const BackwardBuffers<T>& b,
    int64_t batch,
    int64_t head) {
  const AttentionShape& shape = args.shape;
  const int64_t tokens = shape.query_tokens;
  const auto pack = [&](T* columns, T* rows) {
    pack_columns(
        b.rows,
        padded.depth,
        padded.depth,
        padded.queries,
        padded.depth,
        columns);
    pack_rows(
        b.rows,
        padded.depth,
        padded.queries,
        padded.width,
        padded.queries,
        rows);
  };
  const auto gather = [&](const auto& x, const Rotation& rotation) {
    gather_rows(
        x,
        batch,
        head,
        tokens,
        shape.head_dim,
        rotation,
        padded.queries,
        padded.depth,
        b.rows);
  };
  gather(args.q, shape.query_rotation);
  pack(b.q_columns, b.q_rows);
  if (args.dout.data != nullptr)
    gather(args.dout, {});
  else
    gather(args.wide_dout, {});
  pack(b.dout_columns, b.dout_rows);
  std::fill_n(b.dq_t, padded.width * padded.queries, 0.0F);
  const int64_t row = (batch * shape.heads + head) * tokens;
  std::copy_n(args.lse + row, tokens, b.lse);
  std::copy_n(args.delta + row, tokens, b.delta);
}

// Stores dq, plus what other keys gave so far.
template <typename T, typename Out>
void store_dq(
    const AttentionBackward<T>& args,
    const Padded& padded,
    const BackwardBuffers<T>& b,
    const Heads<Out>& dq,
    int64_t batch,
    int64_t head) {
  const AttentionShape& shape = args.shape;
  const auto& so_far = args.dq_so_far;
  const auto put = [&](int64_t begin, int64_t end, const auto&... addend) {
    scatter_rows(
        b.dq,
        padded.width,
        begin,
        end,
        shape.head_dim,
        shape.query_rotation,
        dq,
        batch,
        head,
        addend...);
  };
  if (so_far.values.data == nullptr) {
    put(0, shape.query_tokens);
    return;
  }
  put(0, so_far.begin);
  put(so_far.begin, so_far.end, so_far.values);
  put(so_far.end, shape.query_tokens);
}

template <typename T>
void backward_head(
    const AttentionBackward<T>& args,
    const Padded& padded,
    const BackwardBuffers<T>& b,
    int64_t batch,
    int64_t head) {
  load_head(args, padded, b, batch, head);
  for (int64_t query = 0; query < padded.queries;
       query += kBackwardQueryBlock) {
    const int64_t queries =
        std::min(kBackwardQueryBlock, padded.queries - query);
    const Seen seen = seen_by(b.first + query, b.end + query, queries);
    for (int64_t key = seen.lowest / kKeyBlock * kKeyBlock; key < seen.highest;
         key += kKeyBlock)
      backward_block(args.shape, padded, b, key, query, seen);
  }
  transpose(
      b.dq_t, padded.queries, padded.width, padded.queries, b.dq, padded.width);
  if (args.dq.data != nullptr)
    store_dq(args, padded, b, args.dq, batch, head);
  else
    store_dq(args, padded, b, args.wide_dq, batch, head);
}

template <typename T>
void lay_out(
    ScratchPieces& pieces,
    const AttentionShape& shape,
    const Padded& padded,
    BackwardBuffers<T>& b) {
  const int64_t panels = round_up(shape.head_dim, kPanel);
  constexpr int64_t kBlock = kKeyBlock * kBackwardQueryBlock;
  b.key_rows = pieces.take<T>(padded.keys * padded.depth);
  b.value_rows = pieces.take<T>(padded.keys * padded.depth);
  b.keys_t = pieces.take<T>(padded.width * padded.keys);
  b.dkeys = pieces.take<float>(padded.keys * padded.width);
  b.dvalues = pieces.take<float>(padded.keys * padded.width);
  b.rows = pieces.take<T>(padded.queries * padded.depth);
  b.q_columns = pieces.take<T>(padded.queries * padded.depth);
  b.q_rows = pieces.take<T>(padded.queries * panels);
  b.dout_columns = pieces.take<T>(padded.queries * padded.depth);
  b.dout_rows = pieces.take<T>(padded.queries * panels);
  b.dq_t = pieces.take<float>(padded.width * padded.queries);
  b.dq = pieces.take<float>(padded.queries * padded.width);
  b.lse = pieces.take<float>(padded.queries);
  b.delta = pieces.take<float>(padded.queries);
  b.first = pieces.take<int32_t>(padded.queries);
  b.end = pieces.take<int32_t>(padded.queries);
  b.scores = pieces.take<float>(kBlock);
  b.dscores = pieces.take<float>(kBlock);
  b.p = pieces.take<T>(kBlock);
  b.ds = pieces.take<T>(kBlock);
  b.ds_packed = pieces.take<T>(kBlock);
}

template <typename T>
void backward(const AttentionBackward<T>& args, int64_t group) {
  const AttentionShape& shape = args.shape;
  const Padded padded(shape);
  const int64_t batch = group / shape.key_heads;
  const int64_t key_head = group % shape.key_heads;
  BackwardBuffers<T> b{};
  scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
    lay_out(pieces, shape, padded, b);
  });
  const auto gather = [&](const auto& x, const Rotation& rotation, T* rows) {
    gather_rows(
        x,
        batch,
        key_head,
        shape.key_tokens,
        shape.head_dim,
        rotation,
        padded.keys,
        padded.depth,
        rows);
  };
  gather(args.k, shape.key_rotation, b.key_rows);
  gather(args.v, {}, b.value_rows);
  transpose(
      b.key_rows,
      padded.depth,
      padded.keys,
      padded.width,
      b.keys_t,
      padded.keys);
  std::fill_n(b.dkeys, padded.keys * padded.width, 0.0F);
  std::fill_n(b.dvalues, padded.keys * padded.width, 0.0F);
  // Queries that are padding see nothing.
  const int64_t seen = batch * shape.seen_batch_stride;
  for (auto [from, to] :
       {std::pair{shape.first_key, b.first}, std::pair{shape.end_key, b.end}}) {
    std::copy_n(from + seen, shape.query_tokens, to);
    std::fill(to + shape.query_tokens, to + padded.queries, 0);
  }
  std::fill(b.lse + shape.query_tokens, b.lse + padded.queries, 0.0F);
  std::fill(b.delta + shape.query_tokens, b.delta + padded.queries, 0.0F);
  const int64_t heads = shape.heads / shape.key_heads;
  const TileSession session;
  for (int64_t head = key_head * heads; head < (key_head + 1) * heads; ++head)
    backward_head(args, padded, b, batch, head);
  const auto scatter = [&](const float* rows,
                           const Rotation& rotation,
                           const auto& narrow,
                           const auto& wide) {
    const auto put = [&](const auto& to) {
      scatter_rows(
          rows,
          padded.width,
          0,
          shape.key_tokens,
          shape.head_dim,
          rotation,
          to,
          batch,
          key_head);
    };
    if (narrow.data != nullptr)
      put(narrow);
    else
      put(wide);
  };
  scatter(b.dkeys, shape.key_rotation, args.dk, args.wide_dk);
  scatter(b.dvalues, {}, args.dv, args.wide_dv);
}

static constexpr auto& backward_f32 = backward<float>;
static constexpr auto& backward_bf16 = backward<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

void attention_backward(const AttentionBackward<float>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(p, group);
}
void attention_backward(const AttentionBackward<uint16_t>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(p, group);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
