#include <ATen/Parallel.h>

#include <algorithm>

#include "brigade/kernels/cpu/ragged_kernel.h"

namespace brigade::ops {

bool has_ragged_kernel(int64_t rows, int64_t out, int64_t in) {
  constexpr int64_t kMostRows = 128;  // with AMX
  return out > 0 && in > 0 && out % kPanel == 0 && in % kPanel == 0 &&
         detail::has_tile_kind(detail::TileKind::kAvx512Bf16) &&
         (rows <= kMostRows || !detail::has_tile_kind(detail::TileKind::kAmx));
}

void ragged_products(const std::vector<LinearProduct>& products) {
  const bool has_amx = detail::has_tile_kind(detail::TileKind::kAmx);
  detail::ragged_products(
      products,
      has_amx ? detail::TileKind::kAmx : detail::TileKind::kAvx512Bf16);
}

namespace detail {

void ragged_products(
    const std::vector<LinearProduct>& products,
    TileKind kind) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    const TileSession session;
    for (int64_t thread = first; thread < last; ++thread) {
      for (size_t i = 0; i < products.size(); ++i) {
        const LinearProduct& p = products[i];
        const int64_t panels = p.columns / kPanel;
        const int64_t begin = panels * thread / threads * kPanel;
        const int64_t end = panels * (thread + 1) / threads * kPanel;
        if (begin == end)
          continue;
        if (kind == TileKind::kAmx) {
          ragged_part_amx(p, begin, end);
          continue;
        }
        const LinearProduct& next =
            products[std::min(i + 1, products.size() - 1)];
        ragged_part_avx512_bf16(
            p,
            begin,
            end,
            next.weight + begin * (p.weight_in_rows ? 1 : p.depth));
      }
    }
  });
}

}  // namespace detail

}  // namespace brigade::ops
