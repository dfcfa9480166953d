// The work of one key head and its query heads, on one thread. Operands are
// packed once a head; then the mask's blocks pass by.
//
// Forward, for a block of queries: S = Q K^T, online softmax (Milakov and
// Gimelshein 2018), O += P V. Backward works on transposes, [keys, queries], so
// that a query's lse and delta lie along a vector and P^T and dS^T are left
// operands as they are made: dV += P^T dO, dK += dS^T Q, dQ^T += K^T dS^T.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "brigade/ops/attention_kernel.h"
#include "brigade/ops/scratch.h"
#include "brigade/ops/simd_targets.h"
#include "brigade/ops/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/attention_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

constexpr int64_t kQueryBlock = 64;  // of forward
constexpr int64_t kKeyBlock = 128;
constexpr int64_t kBackwardQueryBlock = 64;

// Sizes rounded up to what tile_product() takes.
struct Padded {
  explicit Padded(const AttentionShape& shape)
      : queries(round_up(shape.query_tokens, kPanel)),
        keys(round_up(shape.key_tokens, kPanel)),
        depth(round_up(shape.head_dim, kDepth)),
        width(round_up(shape.head_dim, kRowTile)) {}
  int64_t queries;
  int64_t keys;
  int64_t depth;  // D as an inner dimension
  int64_t width;  // D as an outer dimension
};

// Copies a head's rows to [padded_tokens, depth] with zeros around, rotated.
template <typename From, typename T>
void gather_rows(
    const Heads<const From>& x,
    int64_t batch,
    int64_t head,
    int64_t tokens,
    int64_t head_dim,
    const Rotation& rotation,
    int64_t padded_tokens,
    int64_t depth,
    T* rows) {
  // A head's rows lie too far apart for the processor to see them coming.
  constexpr int64_t kAhead = 16;
  const int64_t half = head_dim / 2;
  for (int64_t token = 0; token < tokens; ++token) {
    const From* from = x.at(batch, token, head);
    const From* ahead = x.at(batch, std::min(token + kAhead, tokens - 1), head);
    __builtin_prefetch(ahead);
    __builtin_prefetch(ahead + head_dim - 1);
    T* to = rows + token * depth;
    if (rotation.cos == nullptr && std::is_same_v<From, T>) {
      std::memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(T));
    } else if (rotation.cos == nullptr) {
      for_vectors(
          static_cast<size_t>(head_dim),
          [&](size_t i, auto get, auto put)
              HWY_ATTR { put(get(from + i), to + i); });
    } else {
      const float* cos = rotation.cos + token * half;
      const float* sin = rotation.sin + token * half;
      for_vectors(
          static_cast<size_t>(half),
          [&](size_t i, auto get, auto put) HWY_ATTR {
            const auto a = get(from + i);
            const auto b = get(from + half + i);
            const auto c = get(cos + i);
            const auto s = get(sin + i);
            put(hn::NegMulAdd(b, s, hn::Mul(a, c)), to + i);
            put(hn::MulAdd(a, s, hn::Mul(b, c)), to + half + i);
          });
    }
    std::fill(to + head_dim, to + depth, T(0));
  }
  std::fill(rows + tokens * depth, rows + padded_tokens * depth, T(0));
}

// Stores [tokens, width] float rows as a head's rows, rotated back, plus
// `addend` of the tokens from `first` on.
template <typename T>
void add_to_rows(
    const float* rows,
    int64_t stride,
    int64_t tokens,
    int64_t head_dim,
    const Rotation& rotation,
    const Heads<T>& y,
    const Heads<const float>& addend,
    int64_t first,
    int64_t batch,
    int64_t head) {
  const int64_t half = head_dim / 2;
  for (int64_t token = first; token < first + tokens; ++token) {
    const float* from = rows + token * stride;
    const float* other = addend.at(batch, token - first, head);
    T* to = y.at(batch, token, head);
    if (rotation.cos == nullptr) {
      for_vectors(
          static_cast<size_t>(head_dim),
          [&](size_t i, auto get, auto put) HWY_ATTR {
            put(hn::Add(get(from + i), get(other + i)), to + i);
          });
      continue;
    }
    const float* cos = rotation.cos + token * half;
    const float* sin = rotation.sin + token * half;
    for_vectors(
        static_cast<size_t>(half), [&](size_t i, auto get, auto put) HWY_ATTR {
          const auto a = get(from + i);
          const auto b = get(from + half + i);
          const auto c = get(cos + i);
          const auto s = get(sin + i);
          const auto x = hn::MulAdd(b, s, hn::Mul(a, c));
          const auto z = hn::NegMulAdd(a, s, hn::Mul(b, c));
          put(hn::Add(x, get(other + i)), to + i);
          put(hn::Add(z, get(other + half + i)), to + half + i);
        });
  }
}

// Stores the float rows [begin, end) of [tokens, width] as a head's rows,
// rotated back.
template <typename T>
void scatter_rows(
    const float* rows,
    int64_t stride,
    int64_t begin,
    int64_t end,
    int64_t head_dim,
    const Rotation& rotation,
    const Heads<T>& y,
    int64_t batch,
    int64_t head) {
  const int64_t half = head_dim / 2;
  for (int64_t token = begin; token < end; ++token) {
    const float* from = rows + token * stride;
    T* to = y.at(batch, token, head);
    if (rotation.cos == nullptr) {
      for_vectors(
          static_cast<size_t>(head_dim),
          [&](size_t i, auto get, auto put)
              HWY_ATTR { put(get(from + i), to + i); });
      continue;
    }
    const float* cos = rotation.cos + token * half;
    const float* sin = rotation.sin + token * half;
    for_vectors(
        static_cast<size_t>(half), [&](size_t i, auto get, auto put) HWY_ATTR {
          const auto a = get(from + i);
          const auto b = get(from + half + i);
          const auto c = get(cos + i);
          const auto s = get(sin + i);
          put(hn::MulAdd(b, s, hn::Mul(a, c)), to + i);
          put(hn::NegMulAdd(a, s, hn::Mul(b, c)), to + half + i);
        });
  }
}

template <typename T>
void multiply(
    const T* a,
    int64_t a_stride,
    const T* b,
    int64_t panel_stride,
    float* c,
    int64_t c_stride,
    int64_t m,
    int64_t n,
    int64_t k,
    bool add) {
  tile_product(TileProduct<T>{
      .a = a,
      .b = b,
      .c = c,
      .m = m,
      .n = n,
      .k = k,
      .a_stride = a_stride,
      .panel_stride = panel_stride,
      .c_stride = c_stride,
      .add = add});
}

// The keys that some query of a block sees, and whether a block of keys is
// seen whole by all of them.
struct Seen {
  const int32_t* first;
  const int32_t* end;
  int64_t lowest;   // of first
  int64_t highest;  // of end
  int64_t latest;   // the largest first
  int64_t nearest;  // the smallest end
};

Seen seen_by(const int32_t* first, const int32_t* end, int64_t queries) {
  Seen seen{first, end, first[0], end[0], first[0], end[0]};
  for (int64_t i = 0; i < queries; ++i) {
    const bool any = first[i] < end[i];
    if (any) {
      const bool none_yet = seen.lowest >= seen.highest;
      seen.lowest =
          none_yet ? first[i] : std::min<int64_t>(seen.lowest, first[i]);
      seen.highest =
          none_yet ? end[i] : std::max<int64_t>(seen.highest, end[i]);
    }
    seen.latest = std::max<int64_t>(seen.latest, first[i]);
    seen.nearest = std::min<int64_t>(seen.nearest, end[i]);
  }
  return seen;
}

// Scores are exponents of kBase<T>: e, or 2 where the results are bf16 and a
// rounding more is far below theirs.
template <typename T>
constexpr float kScoreScale = std::is_same_v<T, float> ? 1.0F : kLog2E;
template <typename T>
HWY_INLINE VF power(VF exponent) {
  if constexpr (std::is_same_v<T, float>)
    return fast_exp(exponent);
  else
    return fast_exp2(exponent);
}

// One row of scores: masks, folds into the running maximum and sum, makes P and
// the factor by which the row of O so far must shrink.
template <typename T>
HWY_INLINE float softmax_row(
    float* scores,
    int64_t begin,  // first column seen
    int64_t end,
    int64_t columns,  // of P, zero outside
    float scale,
    float& maximum,
    float& sum,
    T* p) {
  const DF df;
  if (begin >= end) {
    std::fill_n(p, columns, T(0));
    return 1.0F;
  }
  const float lowest = -std::numeric_limits<float>::infinity();
  // Hidden columns become -infinity, so that whole vectors may be taken.
  std::fill(scores, scores + begin, lowest);
  std::fill(scores + end, scores + columns, lowest);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  auto top = hn::Set(df, lowest);
  for (int64_t i = 0; i < columns; i += lanes)
    top = hn::Max(top, hn::LoadU(df, scores + i));
  const float here = hn::GetLane(hn::MaxOfLanes(df, top)) * scale;
  const float next = std::max(maximum, here);
  const auto factor = hn::Set(df, scale * kScoreScale<T>);
  const auto shift = hn::Set(df, next * kScoreScale<T>);
  auto total = hn::Zero(df);
  for (int64_t i = 0; i < columns; i += lanes) {
    const auto value =
        power<T>(hn::MulSub(hn::LoadU(df, scores + i), factor, shift));
    store(value, df, p + i);
    total = hn::Add(total, value);
  }
  // The first block finds nothing to shrink; most later ones no new maximum.
  const float shrink = next == maximum ? 1.0F
                       : sum == 0.0F   ? 0.0F
                                       : std::exp(maximum - next);
  sum = sum * shrink + sum_of_lanes(total);
  maximum = next;
  return shrink;
}

HWY_INLINE void scale_row(float* row, int64_t numel, float factor) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto by = hn::Set(df, factor);
  for (int64_t i = 0; i < numel; i += lanes)
    hn::StoreU(hn::Mul(hn::LoadU(df, row + i), by), df, row + i);
}

template <typename T>
struct ForwardBuffers {
  T* rows;    // gathered keys, then queries
  T* keys;    // packed K^T
  T* values;  // packed V
  float* scores;
  T* p;
  float* out;
};

template <typename T>
void forward_block(
    const AttentionForward<T>& args,
    const Padded& padded,
    const ForwardBuffers<T>& buffers,
    int64_t batch,
    int64_t head,
    int64_t begin) {
  const AttentionShape& shape = args.shape;
  const int64_t queries = std::min(kQueryBlock, shape.query_tokens - begin);
  const int64_t m = round_up(queries, kRowTile);
  const int64_t offset = batch * shape.seen_batch_stride + begin;
  const Seen seen =
      seen_by(shape.first_key + offset, shape.end_key + offset, queries);
  float maximum[kQueryBlock];
  float sum[kQueryBlock];
  std::fill_n(maximum, kQueryBlock, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, kQueryBlock, 0.0F);
  std::fill_n(buffers.out, kQueryBlock * padded.width, 0.0F);
  float* lse = args.lse + batch * args.lse_batch_stride +
               head * args.lse_head_stride + begin;
  if (args.so_far.data != nullptr) {
    for (int64_t i = 0; i < queries; ++i) {
      if (std::isinf(lse[i]))
        continue;  // saw nothing so far
      maximum[i] = lse[i];
      sum[i] = 1.0F;
      std::copy_n(
          args.so_far.at(batch, begin + i, head),
          shape.head_dim,
          buffers.out + i * padded.width);
    }
  }
  for (int64_t key = seen.lowest / kKeyBlock * kKeyBlock; key < seen.highest;
       key += kKeyBlock) {
    // Of the last block only what some query sees.
    const int64_t n = std::min(kKeyBlock, round_up(seen.highest - key, kPanel));
    multiply(
        buffers.rows + begin * padded.depth,
        padded.depth,
        buffers.keys + key * padded.depth,
        kPanel * padded.depth,
        buffers.scores,
        kKeyBlock,
        m,
        n,
        padded.depth,
        false);
    for (int64_t i = 0; i < m; ++i) {
      T* p = buffers.p + i * kKeyBlock;
      if (i >= queries) {
        std::fill_n(p, n, T(0));
        continue;
      }
      const float shrink = softmax_row(
          buffers.scores + i * kKeyBlock,
          std::clamp<int64_t>(seen.first[i] - key, 0, n),
          std::clamp<int64_t>(seen.end[i] - key, 0, n),
          n,
          shape.scale,
          maximum[i],
          sum[i],
          p);
      if (shrink != 1.0F)
        scale_row(buffers.out + i * padded.width, padded.width, shrink);
    }
    multiply(
        buffers.p,
        kKeyBlock,
        buffers.values + key * kPanel,
        kPanel * padded.keys,
        buffers.out,
        padded.width,
        m,
        padded.width,
        n,
        true);
  }
  for (int64_t i = 0; i < queries; ++i) {
    lse[i] = maximum[i] + std::log(sum[i]);
    if (sum[i] > 0)
      scale_row(buffers.out + i * padded.width, padded.width, 1.0F / sum[i]);
  }
  const auto scatter = [&](auto out) {
    out.data = out.at(0, begin, 0);
    scatter_rows(
        buffers.out,
        padded.width,
        0,
        queries,
        shape.head_dim,
        {},
        out,
        batch,
        head);
  };
  if (args.out.data != nullptr)
    scatter(args.out);
  else
    scatter(args.wide_out);
}

template <typename T>
void forward(const AttentionForward<T>& args, int64_t group) {
  const AttentionShape& shape = args.shape;
  const Padded padded(shape);
  const int64_t batch = group / shape.key_heads;
  const int64_t key_head = group % shape.key_heads;
  const int64_t panels = round_up(shape.head_dim, kPanel);
  ForwardBuffers<T> buffers{};
  const auto lay_out = [&](void* base) {
    ScratchPieces pieces(base);
    buffers.rows =
        pieces.take<T>(std::max(padded.keys, padded.queries) * padded.depth);
    buffers.keys = pieces.take<T>(padded.keys * padded.depth);
    buffers.values = pieces.take<T>(padded.keys * panels);
    buffers.scores = pieces.take<float>(kQueryBlock * kKeyBlock);
    buffers.p = pieces.take<T>(kQueryBlock * kKeyBlock);
    buffers.out = pieces.take<float>(kQueryBlock * padded.width);
    return pieces.used();
  };
  const size_t bytes = lay_out(nullptr);
  lay_out(scratch(ScratchSlot::kKernel, bytes));
  gather_rows(
      args.k,
      batch,
      key_head,
      shape.key_tokens,
      shape.head_dim,
      shape.key_rotation,
      padded.keys,
      padded.depth,
      buffers.rows);
  pack_columns(
      buffers.rows,
      padded.depth,
      padded.depth,
      padded.keys,
      padded.depth,
      buffers.keys);
  pack_rows(
      args.v.at(batch, 0, key_head),
      args.v.token_stride,
      shape.key_tokens,
      shape.head_dim,
      padded.keys,
      buffers.values);
  const int64_t heads = shape.heads / shape.key_heads;
  const TileSession session;
  for (int64_t head = key_head * heads; head < (key_head + 1) * heads; ++head) {
    gather_rows(
        args.q,
        batch,
        head,
        shape.query_tokens,
        shape.head_dim,
        shape.query_rotation,
        padded.queries,
        padded.depth,
        buffers.rows);
    for (int64_t begin = 0; begin < shape.query_tokens; begin += kQueryBlock)
      forward_block(args, padded, buffers, batch, head, begin);
  }
}

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

// P^T and dS^T of a block from S^T and dP^T; dS^T also packed as a right
// operand. A column is a query.
template <typename T>
void softmax_gradient(
    const BackwardBuffers<T>& b,
    float scale,
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
      p = power<T>(hn::MulSub(hn::LoadU(df, b.scores + at), exponent, lse));
      ds = hn::Mul(
          hn::Mul(p, hn::Sub(hn::LoadU(df, b.dscores + at), delta)), factor);
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
  // Of the last block only what some query sees.
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
  softmax_gradient(b, shape.scale, key, keys, query, queries, !whole);
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

template <typename T>
void backward_head(
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
  for (int64_t query = 0; query < padded.queries;
       query += kBackwardQueryBlock) {
    const int64_t queries =
        std::min(kBackwardQueryBlock, padded.queries - query);
    const Seen seen = seen_by(b.first + query, b.end + query, queries);
    for (int64_t key = seen.lowest / kKeyBlock * kKeyBlock; key < seen.highest;
         key += kKeyBlock)
      backward_block(shape, padded, b, key, query, seen);
  }
  transpose(
      b.dq_t, padded.queries, padded.width, padded.queries, b.dq, padded.width);
  const auto scatter = [&](const auto& dq) {
    const auto& so_far = args.dq_so_far;
    const auto put = [&](int64_t begin, int64_t end) {
      scatter_rows(
          b.dq,
          padded.width,
          begin,
          end,
          shape.head_dim,
          shape.query_rotation,
          dq,
          batch,
          head);
    };
    if (so_far.values.data == nullptr) {
      put(0, tokens);
      return;
    }
    put(0, so_far.begin);
    add_to_rows(
        b.dq,
        padded.width,
        so_far.end - so_far.begin,
        shape.head_dim,
        shape.query_rotation,
        dq,
        so_far.values,
        so_far.begin,
        batch,
        head);
    put(so_far.end, tokens);
  };
  if (args.dq.data != nullptr)
    scatter(args.dq);
  else
    scatter(args.wide_dq);
}

template <typename T>
size_t lay_out(
    void* base,
    const AttentionShape& shape,
    const Padded& padded,
    BackwardBuffers<T>& b) {
  ScratchPieces pieces(base);
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
  return pieces.used();
}

template <typename T>
void backward(const AttentionBackward<T>& args, int64_t group) {
  const AttentionShape& shape = args.shape;
  const Padded padded(shape);
  const int64_t batch = group / shape.key_heads;
  const int64_t key_head = group % shape.key_heads;
  BackwardBuffers<T> b{};
  const size_t bytes = lay_out<T>(nullptr, shape, padded, b);
  lay_out(scratch(ScratchSlot::kKernel, bytes), shape, padded, b);
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

using Bf16 = uint16_t;
void forward_f32(const AttentionForward<float>& p, int64_t group) {
  forward(p, group);
}
void forward_bf16(const AttentionForward<Bf16>& p, int64_t group) {
  forward(p, group);
}
void backward_f32(const AttentionBackward<float>& p, int64_t group) {
  backward(p, group);
}
void backward_bf16(const AttentionBackward<Bf16>& p, int64_t group) {
  backward(p, group);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

void attention_forward(const AttentionForward<float>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(p, group);
}
void attention_forward(const AttentionForward<uint16_t>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(p, group);
}
void attention_backward(const AttentionBackward<float>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(p, group);
}
void attention_backward(const AttentionBackward<uint16_t>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(p, group);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
