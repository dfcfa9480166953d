// Attention forward of one key head and its query heads, on one thread. Keys
// and values are packed once a head; then, for each block of queries, the
// mask's blocks of keys pass by: S = Q K^T, online softmax (Milakov and
// Gimelshein 2018), O += P V.
#include <algorithm>
#include <cmath>
#include <limits>

#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/attention_forward_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/attention_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

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

// scores = cap * tanh(scale * scores / cap), rows kKeyBlock apart. A call:
// few models cap their scores.
HWY_NOINLINE void cap_scores(
    float* scores,
    int64_t rows,
    int64_t columns,
    float scale,
    float cap) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto inner = hn::Set(df, scale / cap);
  const auto outer = hn::Set(df, cap);
  for (int64_t row = 0; row < rows; ++row) {
    float* of = scores + row * kKeyBlock;
    for (int64_t i = 0; i < columns; i += lanes)
      hn::StoreU(
          hn::Mul(outer, hn::Tanh(df, hn::Mul(hn::LoadU(df, of + i), inner))),
          df,
          of + i);
  }
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

// Some queries of a head, and their running maxima and sums of exponentials.
struct QueryBlock {
  int64_t batch;
  int64_t head;
  int64_t begin;
  int64_t queries;
  float* lse;
  float maximum[kQueryBlock];
  float sum[kQueryBlock];
};

// Nothing seen yet, or what was found over the keys of before.
template <typename T>
void begin_block(
    const AttentionForward<T>& args,
    const Padded& padded,
    QueryBlock& block,
    float* out) {
  std::fill_n(
      block.maximum, kQueryBlock, -std::numeric_limits<float>::infinity());
  std::fill_n(block.sum, kQueryBlock, 0.0F);
  std::fill_n(out, kQueryBlock * padded.width, 0.0F);
  if (args.so_far.data == nullptr)
    return;
  for (int64_t i = 0; i < block.queries; ++i) {
    if (std::isinf(block.lse[i]))
      continue;  // saw nothing so far
    block.maximum[i] = block.lse[i];
    block.sum[i] = 1.0F;
    std::copy_n(
        args.so_far.at(block.batch, block.begin + i, block.head),
        args.shape.head_dim,
        out + i * padded.width);
  }
}

// The keys [key, key + n): S = Q K^T, P, O += P V. Inlined: as a call it
// made forward over 4,096 tokens a fifth slower (GCC 12, AMX).
template <typename T>
HWY_INLINE void attend_to_keys(
    const AttentionShape& shape,
    const Padded& padded,
    const ForwardBuffers<T>& buffers,
    const Seen& seen,
    int64_t key,
    int64_t n,
    QueryBlock& block) {
  const int64_t m = round_up(block.queries, kRowTile);
  multiply(
      buffers.rows + block.begin * padded.depth,
      padded.depth,
      buffers.keys + key * padded.depth,
      kPanel * padded.depth,
      buffers.scores,
      kKeyBlock,
      m,
      n,
      padded.depth,
      false);
  const bool capped = shape.soft_cap > 0;
  if (capped)
    cap_scores(buffers.scores, block.queries, n, shape.scale, shape.soft_cap);
  for (int64_t i = 0; i < m; ++i) {
    T* p = buffers.p + i * kKeyBlock;
    if (i >= block.queries) {
      std::fill_n(p, n, T(0));
      continue;
    }
    const float shrink = softmax_row(
        buffers.scores + i * kKeyBlock,
        std::clamp<int64_t>(seen.first[i] - key, 0, n),
        std::clamp<int64_t>(seen.end[i] - key, 0, n),
        n,
        capped ? 1.0F : shape.scale,
        block.maximum[i],
        block.sum[i],
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

// Divides by the sums and stores the block.
template <typename T>
void finish_block(
    const AttentionForward<T>& args,
    const Padded& padded,
    const QueryBlock& block,
    float* out) {
  for (int64_t i = 0; i < block.queries; ++i) {
    block.lse[i] = block.maximum[i] + std::log(block.sum[i]);
    if (block.sum[i] > 0)
      scale_row(out + i * padded.width, padded.width, 1.0F / block.sum[i]);
  }
  const auto scatter = [&](auto to) {
    to.data = to.at(0, block.begin, 0);
    scatter_rows(
        out,
        padded.width,
        0,
        block.queries,
        args.shape.head_dim,
        {},
        to,
        block.batch,
        block.head);
  };
  if (args.out.data != nullptr)
    scatter(args.out);
  else
    scatter(args.wide_out);
}

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
  const int64_t offset = batch * shape.seen_batch_stride + begin;
  const Seen seen =
      seen_by(shape.first_key + offset, shape.end_key + offset, queries);
  QueryBlock block;
  block.batch = batch;
  block.head = head;
  block.begin = begin;
  block.queries = queries;
  block.lse = args.lse + batch * args.lse_batch_stride +
              head * args.lse_head_stride + begin;
  begin_block(args, padded, block, buffers.out);
  for (int64_t key = seen.lowest / kKeyBlock * kKeyBlock; key < seen.highest;
       key += kKeyBlock) {
    // The last block ends with what some query sees.
    const int64_t n = std::min(kKeyBlock, round_up(seen.highest - key, kPanel));
    attend_to_keys(shape, padded, buffers, seen, key, n, block);
  }
  finish_block(args, padded, block, buffers.out);
}

template <typename T>
void forward(const AttentionForward<T>& args, int64_t group) {
  const AttentionShape& shape = args.shape;
  const Padded padded(shape);
  const int64_t batch = group / shape.key_heads;
  const int64_t key_head = group % shape.key_heads;
  const int64_t panels = round_up(shape.head_dim, kPanel);
  ForwardBuffers<T> buffers{};
  scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
    buffers.rows =
        pieces.take<T>(std::max(padded.keys, padded.queries) * padded.depth);
    buffers.keys = pieces.take<T>(padded.keys * padded.depth);
    buffers.values = pieces.take<T>(padded.keys * panels);
    buffers.scores = pieces.take<float>(kQueryBlock * kKeyBlock);
    buffers.p = pieces.take<T>(kQueryBlock * kKeyBlock);
    buffers.out = pieces.take<float>(kQueryBlock * padded.width);
  });
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

static constexpr auto& forward_f32 = forward<float>;
static constexpr auto& forward_bf16 = forward<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);

void attention_forward(const AttentionForward<float>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(p, group);
}
void attention_forward(const AttentionForward<uint16_t>& p, int64_t group) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(p, group);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
