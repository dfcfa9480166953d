// Optimizers' states in fewer bits: codes of blocks, and stochastic rounding;
// dropout, whose random bits are made as that's.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/ops/block_codes.h"
#include "brigade/ops/input_dropout.h"
#include "brigade/ops/stochastic_rounding.h"

namespace brigade::ops {
namespace {

// Blocks, and elements, of a task.
constexpr int64_t kBlocksAtOnce = 64;
constexpr int64_t kNumelAtOnce = kBlocksAtOnce * kBlockNumel;

// Finds the nearest entry of a map by one look and one comparison: numbers of
// the same upper 16 bits have at most one middle of two entries among them.
class NearestEntry {
 public:
  explicit NearestEntry(const std::array<float, 256>& map) {
    for (size_t i = 0; i + 1 < map.size(); ++i)
      middles_[i] = (map[i] + map[i + 1]) / 2;
    middles_.back() = std::numeric_limits<float>::infinity();
    for (uint32_t upper = 0; upper < first_.size(); ++upper) {
      const auto a = std::bit_cast<float>(upper << 16);
      const auto b = std::bit_cast<float>((upper << 16) | 0xffffU);
      const float least = std::min(a, b);
      first_[upper] = static_cast<uint8_t>(
          std::lower_bound(middles_.begin(), middles_.end() - 1, least) -
          middles_.begin());
    }
  }
  // How many middles are below.
  uint8_t operator()(float value) const {
    const uint8_t first = first_[std::bit_cast<uint32_t>(value) >> 16];
    return static_cast<uint8_t>(first + (value > middles_[first] ? 1 : 0));
  }

 private:
  std::array<float, 256> middles_{};
  std::array<uint8_t, 1 << 16> first_{};
};

const NearestEntry& nearest_entry(torch::ScalarType codes) {
  static const NearestEntry with_sign(dynamic_map(torch::kChar));
  static const NearestEntry without_sign(dynamic_map(torch::kByte));
  return codes == torch::kChar ? with_sign : without_sign;
}

// From an entry's number to its code's bits, and back.
uint8_t sign_of(const Tensor& codes) {
  return codes.scalar_type() == torch::kChar ? 0x80 : 0;
}

// A NaN counts as the largest.
float block_scale(const float* values, int64_t numel) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < numel; ++i)
    largest =
        std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffU);
  const auto scale = std::bit_cast<float>(largest);
  return scale < kLeastBlockScale ? 0.0F : scale;
}

uint16_t round_by(float value, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value))
    return 0x7fc0;
  const uint32_t rounded = bits + random;
  const bool overflows =
      std::isfinite(value) && (rounded & 0x7f800000U) == 0x7f800000U;
  return static_cast<uint16_t>((overflows ? bits : rounded) >> 16);
}

}  // namespace

Tensor CpuKernels::decode_blocks(const Tensor& codes, const Tensor& scales)
    const {
  const Tensor values =
      at::empty(codes.sizes(), codes.options().dtype(torch::kFloat));
  const auto& map = dynamic_map(codes.scalar_type());
  const uint8_t sign = sign_of(codes);
  const auto* from = data<uint8_t>(codes);
  const float* scale = data<float>(scales);
  float* to = data<float>(values);
  at::parallel_for(
      0, codes.numel(), kNumelAtOnce, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          to[i] = map[from[i] ^ sign] * scale[i / kBlockNumel];
      });
  return values;
}

void CpuKernels::encode_blocks(
    const Tensor& values,
    Tensor codes,
    Tensor scales) const {
  const NearestEntry& nearest = nearest_entry(codes.scalar_type());
  const uint8_t sign = sign_of(codes);
  const float* from = data<float>(values);
  auto* to = data<uint8_t>(codes);
  auto* scale = data<float>(scales);
  const int64_t numel = values.numel();
  at::parallel_for(
      0, scales.numel(), kBlocksAtOnce, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * kBlockNumel;
          const int64_t last = std::min(first + kBlockNumel, numel);
          scale[block] = block_scale(from + first, last - first);
          for (int64_t i = first; i < last; ++i)
            to[i] =
                nearest(scale[block] == 0 ? 0 : from[i] / scale[block]) ^ sign;
        }
      });
}

void CpuKernels::round_stochastically(
    const Tensor& values,
    Tensor rounded,
    const RandomBits& bits) const {
  const float* from = data<float>(values);
  auto* to = data<uint16_t>(rounded);
  const WholeIndex& index = bits.index;
  at::parallel_for(
      0, values.numel(), kNumelAtOnce, [&](int64_t begin, int64_t end) {
        // Divisions once per run that is one in the whole too.
        for (int64_t i = begin; i < end;) {
          const int64_t in_run = (index.begin + i) % index.run;
          const int64_t stop =
              end - i < index.run - in_run ? end : i + (index.run - in_run);
          int64_t at = index(i);
          for (; i < stop; ++i, ++at)
            to[i] = round_by(
                from[i], random_bits(bits.key, static_cast<uint64_t>(at)));
        }
      });
}

namespace {

template <typename Element>
void drop_elements_of(
    const Tensor& rows,
    const InputDropout& dropout,
    uint64_t key) {
  const auto* keys = data<int64_t>(dropout.token_keys);
  auto* elements = data<Element>(rows);
  const int64_t features = rows.size(1);
  const auto first = static_cast<uint64_t>(dropout.first_feature);
  const uint32_t threshold = dropout.threshold();
  at::parallel_for(
      0,
      rows.size(0),
      std::max<int64_t>(1, kNumelAtOnce / features),
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const uint64_t row_key = static_cast<uint64_t>(keys[row]) + key;
          Element* of_row = elements + row * features;
          for (int64_t i = 0; i < features; ++i) {
            const uint64_t feature = first + static_cast<uint64_t>(i);
            of_row[i] = random_word(row_key, feature) < threshold ? Element{0}
                                                                  : of_row[i];
          }
        }
      });
}

}  // namespace

void CpuKernels::drop_elements(
    Tensor rows,
    const InputDropout& dropout,
    uint64_t key) const {
  with_element_type(rows, [&](auto element) {
    drop_elements_of<decltype(element)>(rows, dropout, key);
  });
}

}  // namespace brigade::ops
