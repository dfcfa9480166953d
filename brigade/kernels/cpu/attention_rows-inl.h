// What forward and backward of attention share on the CPU: a head's rows
// gathered from and scattered to where they lie, the block sizes, and what a
// mask lets a block see. Included once a target, like Highway's own -inl.h
// files.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/tile_product.h"

#if defined(BRIGADE_OPS_ATTENTION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_OPS_ATTENTION_ROWS_INL_H_
#undef BRIGADE_OPS_ATTENTION_ROWS_INL_H_
#else
#define BRIGADE_OPS_ATTENTION_ROWS_INL_H_
#endif

#include "brigade/kernels/cpu/simd-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

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
        depth(round_up(shape.head_dim, least_depth())),
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

// Stores the float rows [begin, end) of [tokens, width] as a head's rows,
// rotated back, plus those of `addend`, Heads<const float> from `begin` on.
template <typename T, typename Addend = std::nullptr_t>
void scatter_rows(
    const float* rows,
    int64_t stride,
    int64_t begin,
    int64_t end,
    int64_t head_dim,
    const Rotation& rotation,
    const Heads<T>& y,
    int64_t batch,
    int64_t head,
    const Addend& addend = nullptr) {
  const int64_t half = head_dim / 2;
  for (int64_t token = begin; token < end; ++token) {
    const float* from = rows + token * stride;
    const float* other = nullptr;
    if constexpr (!std::is_null_pointer_v<Addend>)
      other = addend.at(batch, token - begin, head);
    const auto plus_other = [=](VF value, auto get, size_t i) HWY_ATTR {
      if constexpr (std::is_null_pointer_v<Addend>)
        return value;
      else
        return hn::Add(value, get(other + i));
    };
    T* to = y.at(batch, token, head);
    if (rotation.cos == nullptr) {
      for_vectors(
          static_cast<size_t>(head_dim),
          [&](size_t i, auto get, auto put)
              HWY_ATTR { put(plus_other(get(from + i), get, i), to + i); });
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
          put(plus_other(x, get, i), to + i);
          put(plus_other(z, get, half + i), to + half + i);
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

HWY_INLINE Seen
seen_by(const int32_t* first, const int32_t* end, int64_t queries) {
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

// Scores are exponents of a base: e, or 2 where the results are bf16 and a
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

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
