// Optimizers' states in fewer bits: codes of blocks, and stochastic rounding;
// dropout, whose random bits are made as that's.
#include <ATen/Parallel.h>

#include <algorithm>

#include "brigade/kernels/cpu/block_codes_kernel.h"
#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/stochastic_rounding_kernel.h"
#include "brigade/ops/block_codes.h"
#include "brigade/ops/input_dropout.h"
#include "brigade/ops/stochastic_rounding.h"

namespace brigade::ops {
namespace {

// Blocks, and elements, of a task.
constexpr int64_t kBlocksAtOnce = 64;
constexpr int64_t kNumelAtOnce = kBlocksAtOnce * kBlockNumel;

const CodeMap& code_map(torch::ScalarType codes) {
  static const CodeMap with_sign(dynamic_map(torch::kChar));
  static const CodeMap without_sign(dynamic_map(torch::kByte));
  return codes == torch::kChar ? with_sign : without_sign;
}

// Calls body(first, numel, block) for each block, on several threads.
template <typename Body>
void for_blocks(int64_t numel, Body&& body) {
  at::parallel_for(
      0, count_blocks(numel), kBlocksAtOnce, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          const int64_t first = block * kBlockNumel;
          body(first, std::min(kBlockNumel, numel - first), block);
        }
      });
}

}  // namespace

Tensor CpuKernels::decode_blocks(const Tensor& codes, const Tensor& scales)
    const {
  const Tensor values =
      at::empty(codes.sizes(), codes.options().dtype(torch::kFloat));
  const CodeMap& map = code_map(codes.scalar_type());
  const auto* from = data<uint8_t>(codes);
  const float* scale = data<float>(scales);
  float* to = data<float>(values);
  for_blocks(codes.numel(), [&](int64_t first, int64_t numel, int64_t block) {
    decode_block_kernel(map, from + first, scale[block], numel, to + first);
  });
  return values;
}

void CpuKernels::encode_blocks(
    const Tensor& values,
    Tensor codes,
    Tensor scales) const {
  const CodeMap& map = code_map(codes.scalar_type());
  const float* from = data<float>(values);
  auto* to = data<uint8_t>(codes);
  auto* scale = data<float>(scales);
  for_blocks(values.numel(), [&](int64_t first, int64_t numel, int64_t block) {
    scale[block] = largest_magnitude_kernel(from + first, numel);
    if (scale[block] < kLeastBlockScale) {
      scale[block] = 0;
      std::fill_n(to + first, numel, static_cast<uint8_t>(map.zero ^ map.flip));
      return;
    }
    encode_block_kernel(map, from + first, scale[block], numel, to + first);
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
          stochastic_rounding_kernel(
              from + i,
              stop - i,
              bits.key,
              static_cast<uint64_t>(index(i)),
              to + i);
          i = stop;
        }
      });
}

void CpuKernels::drop_elements(
    Tensor rows,
    const InputDropout& dropout,
    uint64_t key) const {
  const auto* keys = data<int64_t>(dropout.token_keys);
  const int64_t features = rows.size(1);
  const auto first = static_cast<uint64_t>(dropout.first_feature);
  const uint32_t threshold = dropout.threshold();
  with_element_type(rows, [&](auto element) {
    using T = decltype(element);
    T* elements = data<T>(rows);
    at::parallel_for(
        0,
        rows.size(0),
        rows_per_task(features, kNumelAtOnce),
        [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            const uint64_t row_key = static_cast<uint64_t>(keys[row]) + key;
            T* of_row = elements + row * features;
            for (int64_t i = 0; i < features; ++i) {
              const uint64_t feature = first + static_cast<uint64_t>(i);
              of_row[i] =
                  random_word(row_key, feature) < threshold ? T{0} : of_row[i];
            }
          }
        });
  });
}

}  // namespace brigade::ops
