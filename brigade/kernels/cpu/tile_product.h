// Small products inside a kernel, on one thread and in its caches: what
// attention, linears and the fused head are made of. bf16 operands run on AMX
// tiles, AVX512-BF16 or Arm's BFMMLA where the processor has them, everything
// else by Highway; sums are float32.
//
// The right operand is packed first: columns in panels of kPanel, within a
// panel groups of k that fill 32 bits (a pair of bf16, one float) side by side:
//   packed[n / kPanel][k / group][n % kPanel][k % group]
// which is what the AMX and AVX512-BF16 dot products of pairs read.
#pragma once

#include <cstdint>

namespace brigade::ops {

constexpr int64_t kPanel = 32;    // columns of a panel
constexpr int64_t kRowTile = 16;  // m and n are multiples (packed m: of 8)
constexpr int64_t kDepth = 32;    // k is a multiple of this, ...
int64_t least_depth();            // ... or of this: 2 where there is no AMX

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Holds this thread's AMX tile configuration while it lives; needed around
// tile_product(), nothing where there is no AMX. Not while oneDNN runs.
class TileSession {
 public:
  TileSession();
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

// A stretch of memory that is about to be read, and the cache where it has room
// beside what is read now.
enum class CacheLevel { kFirst, kSecond };
struct Soon {
  const void* data = nullptr;
  int64_t bytes = 0;
  CacheLevel level = CacheLevel::kFirst;
};

template <typename T>  // float or uint16_t (bf16)
struct TileProduct {
  const T* a;  // [m, k], rows a_stride apart
  const T* b;  // packed; panels panel_stride elements apart
  float* c;    // [m, n], rows c_stride apart
  int64_t m, n, k;
  int64_t a_stride, panel_stride, c_stride;
  bool add;  // c += a b instead of c = a b
  // a lies packed as b does, of m columns, in panels a_stride apart: what is
  // there in columns need not be transposed. Where packed_left_fits().
  bool a_packed = false;
  // What the caller reads after this product, if that lies in memory and not in
  // cache: asked for meanwhile, a few lines a block (AMX and AVX512-BF16).
  Soon soon = {};
};
void tile_product(const TileProduct<float>& p);
void tile_product(const TileProduct<uint16_t>& p);
bool packed_left_fits();  // everywhere but on AMX

// Packs b [k, n] from rows of n (b[k][n] = from[k * stride + n]), zeros up to
// padded_k and up to whole panels. Panels lie padded_k * kPanel apart.
void pack_rows(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed);
void pack_rows(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed);

// Packs the transpose: b[k][n] = from[n * stride + k].
void pack_columns(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed);
void pack_columns(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed);

// to[column * to_stride + row] = from[row * from_stride + column].
void transpose(
    const float* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    float* to,
    int64_t to_stride);
void transpose(
    const uint16_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint16_t* to,
    int64_t to_stride);

// to = from, rounded to bf16; what is too small for a normal bf16 may be 0.
void round_row(const float* from, int64_t numel, uint16_t* to);

// to = alpha a + beta b, rounded so.
struct ScaledSum {
  const float* a;
  float alpha;
  const uint16_t* b;  // bf16
  float beta;
};
void round_scaled_sum(const ScaledSum& sum, int64_t numel, uint16_t* to);

// The instructions that tile_product() uses for bf16 here: "amx",
// "avx512_bf16", "bfmmla" or Highway's name of the target that its kernels run
// on.
const char* tile_product_instructions();

namespace detail {
// The kinds, for tests; a kind that the processor lacks must not be run. Found
// out once, at the first call; on x86 none but kGeneric without Highway's AVX3
// target (hwy::DisableTargets()).
enum class TileKind { kGeneric, kAvx512Bf16, kAmx, kBfmmla };
bool has_tile_kind(TileKind kind);
bool has_bfmmla();
void tile_product_generic(const TileProduct<float>& p);
void tile_product_generic(const TileProduct<uint16_t>& p);
void tile_product_avx512_bf16(const TileProduct<uint16_t>& p);
void tile_product_amx(const TileProduct<uint16_t>& p);
void tile_product_bfmmla(const TileProduct<uint16_t>& p);
void round_row_avx512_bf16(const float* from, int64_t numel, uint16_t* to);
void round_scaled_sum_avx512_bf16(
    const ScaledSum& sum,
    int64_t numel,
    uint16_t* to);
void configure_amx();
void release_amx();
}  // namespace detail

}  // namespace brigade::ops
