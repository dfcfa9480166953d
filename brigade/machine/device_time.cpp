#include "brigade/machine/device_time.h"

#include <algorithm>
#include <cmath>

#include "brigade/base/check.h"

namespace brigade::machine {
namespace {

// What cuBLAS and CUTLASS choose from, with the part of a unit's rate that
// their main loops reach: a smaller tile reads more operand bytes per FLOP from
// the cache (NVIDIA, "Matrix Multiplication Background", figures 5 and 6).
struct Tile {
  int64_t m;
  int64_t n;
  double rate;
};
constexpr Tile kTiles[] = {
    {256, 128, 1.0},
    {128, 256, 1.0},
    {128, 128, 0.92},
    {64, 128, 0.75},
    {128, 64, 0.75},
    {64, 64, 0.55}};
constexpr int64_t kSplits[] = {1, 2, 4, 8, 16};  // of k

// The bytes of an element, by ProductDtype.
constexpr double kElementBytes[kProductDtypes] = {4, 2, 1, 1, 0.5};

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Between two measured sizes on a line in logarithms, constant beyond them.
double interpolate(const std::vector<ProductRate>& rates, int64_t size) {
  const auto above =
      std::ranges::lower_bound(rates, size, {}, &ProductRate::size);
  if (above == rates.begin())
    return rates.front().flops_per_s;
  if (above == rates.end())
    return rates.back().flops_per_s;
  const ProductRate& below = *(above - 1);
  const double part =
      std::log(static_cast<double>(size) / static_cast<double>(below.size)) /
      std::log(
          static_cast<double>(above->size) / static_cast<double>(below.size));
  return below.flops_per_s *
         std::pow(above->flops_per_s / below.flops_per_s, part);
}

// Heads of 64 have half the products per softmax element of heads of 128.
constexpr double kFullHead = 128;
constexpr double kHeadCost = 16;

}  // namespace

double DeviceTime::product(const Product& product, ProductDtype dtype) const {
  const double peak = device_.peak(dtype);
  BRIGADE_ASSERT(peak > 0, "{} has no {}", device_.name, to_string(dtype));
  if (product.m == 0 || product.n == 0 || product.k == 0)
    return 0;
  if (const auto& rates = device_.product_rates[static_cast<size_t>(dtype)];
      !rates.empty()) {
    const int64_t size = std::min({product.m, product.n, product.k});
    return product.flops() / interpolate(rates, size) + device_.kernel_gap_s;
  }
  const double bytes = kElementBytes[static_cast<size_t>(dtype)];
  const auto aligned = [&](double multiple) {
    return std::fmod(static_cast<double>(product.n) * bytes, multiple) == 0 &&
           std::fmod(static_cast<double>(product.k) * bytes, multiple) == 0;
  };
  const double alignment = aligned(128)  ? 1
                           : aligned(16) ? constants_.off_lines
                                         : constants_.off_vectors;
  const double unit_rate =
      peak * device_.sustained * alignment / device_.compute_units;
  double best = 0;
  for (const Tile& tile : kTiles) {
    const int64_t tiles = ceil_divide(product.m, tile.m) *
                          ceil_divide(product.n, tile.n) * product.batch;
    for (int64_t split : kSplits) {
      if (split > 1 &&
          (tiles >= device_.compute_units || product.k < 64 * split))
        break;
      const double depth = static_cast<double>(ceil_divide(product.k, split));
      const double tile_time = 2.0 * static_cast<double>(tile.m * tile.n) *
                                   depth / (unit_rate * tile.rate) +
                               constants_.tile_overhead_s;
      const auto waves = static_cast<double>(
          ceil_divide(tiles * split, device_.compute_units));
      // Pieces of k are summed in memory, in 4 bytes.
      const double sum = split == 1
                             ? 0
                             : memory(
                                   4.0 * static_cast<double>(split + 1) *
                                   static_cast<double>(product.m * product.n) *
                                   static_cast<double>(product.batch));
      const double time = waves * tile_time + sum;
      best = best == 0 ? time : std::min(best, time);
    }
  }
  const double moved =
      static_cast<double>(product.batch) *
      (bytes *
           static_cast<double>(product.m * product.k + product.k * product.n) +
       std::max(2.0, bytes) * static_cast<double>(product.m * product.n));
  return std::max(best + device_.kernel_gap_s, memory(moved));
}

double DeviceTime::weight(int64_t n, int64_t k) const {
  return device_.weight_element_s * static_cast<double>(n) *
         static_cast<double>(k);
}

double DeviceTime::memory_at(double bytes, double bytes_per_s) const {
  return bytes <= 0 ? 0 : bytes / bytes_per_s + device_.kernel_gap_s;
}

double DeviceTime::memory(double bytes) const {
  return memory_at(
      bytes, device_.memory_bytes_per_s * constants_.memory_efficiency);
}

double DeviceTime::elementwise(double bytes) const {
  return device_.elementwise_bytes_per_s > 0
             ? memory_at(bytes, device_.elementwise_bytes_per_s)
             : memory(bytes);
}

double DeviceTime::elementwise_backward(double bytes) const {
  return device_.elementwise_backward_bytes_per_s > 0
             ? memory_at(bytes, device_.elementwise_backward_bytes_per_s)
             : elementwise(bytes);
}

double DeviceTime::logits(double bytes) const {
  return device_.logits_bytes_per_s > 0
             ? memory_at(bytes, device_.logits_bytes_per_s)
             : memory(bytes);
}

double DeviceTime::from_host(double bytes) const {
  return device_.host_bytes_per_s > 0
             ? memory_at(bytes, device_.host_bytes_per_s)
             : memory(2 * bytes);
}

double DeviceTime::attention_rate(int64_t head_dim, AttentionKernel kernel)
    const {
  const ProductDtype dtype = device_.peak(ProductDtype::kBf16) > 0
                                 ? ProductDtype::kBf16
                                 : ProductDtype::kFp32;
  const double fraction = device_.attention[static_cast<size_t>(kernel)];
  // The softmax of a score costs as much as `kHeadCost` of its products'
  // elements; at 128 that is inside the measured fraction.
  const auto dim = static_cast<double>(std::min<int64_t>(head_dim, 128));
  const double softmax =
      (kFullHead / (kFullHead + kHeadCost)) / (dim / (dim + kHeadCost));
  return device_.peak(dtype) * fraction / softmax;
}

double DeviceTime::attention_forward(
    const AttentionWork& work,
    AttentionKernel kernel) const {
  const double flops = 4.0 * static_cast<double>(work.batch) *
                       static_cast<double>(work.queries) * work.keys *
                       static_cast<double>(work.heads * work.head_dim);
  return flops / attention_rate(work.head_dim, kernel) + device_.kernel_gap_s;
}

double DeviceTime::attention_backward(
    const AttentionWork& work,
    AttentionKernel kernel) const {
  return 2.5 * attention_forward(work, kernel);
}

}  // namespace brigade::machine
