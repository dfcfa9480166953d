// Optimizers' states in fewer bits: codes of blocks, and stochastic rounding;
// dropout, whose random bits are made as that's.

#include <algorithm>

#include "brigade/ops/block_codes.h"
#include "brigade/ops/input_dropout.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/stochastic_rounding.h"

namespace brigade::ops {
namespace {

constexpr int64_t kLowHalf = 0xffffffff;

// By codes' dtype, on their device.
Tensor map_on(const Tensor& codes) {
  const auto& map = dynamic_map(codes.scalar_type());
  return torch::tensor(torch::ArrayRef<float>(map.data(), map.size()))
      .to(codes.device());
}

// From a code to its entry.
int64_t first_code(const Tensor& codes) {
  return codes.scalar_type() == torch::kChar ? -128 : 0;
}

// 32-bit products in int64, whose low half wraps as theirs do.
Tensor mix(Tensor x) {
  const auto step = [](const Tensor& y, int shift, int64_t factor) {
    return ((y ^ y.bitwise_right_shift(shift)) * factor) & kLowHalf;
  };
  x = step(x, 16, 0x7feb352d);
  x = step(x, 15, 0x846ca68b);
  return x ^ x.bitwise_right_shift(16);
}

Tensor whole_index(const WholeIndex& index, const Tensor& like) {
  const Tensor at =
      torch::arange(like.numel(), like.options().dtype(torch::kLong)) +
      index.begin;
  return at.div(index.run, "floor") * index.stride + index.offset +
         at.remainder(index.run);
}

}  // namespace

Tensor KernelSet::decode_blocks(const Tensor& codes, const Tensor& scales)
    const {
  const Tensor entries = codes.reshape({-1}).to(torch::kLong);
  const Tensor scale =
      scales.repeat_interleave(kBlockNumel).narrow(0, 0, codes.numel());
  return (map_on(codes).index_select(0, entries - first_code(codes)) * scale)
      .view(codes.sizes());
}

void KernelSet::encode_blocks(const Tensor& values, Tensor codes, Tensor scales)
    const {
  const int64_t numel = values.numel();
  const int64_t blocks = scales.numel();
  const Tensor padded =
      torch::constant_pad_nd(
          values.reshape({-1}), {0, blocks * kBlockNumel - numel})
          .view({blocks, kBlockNumel});
  const Tensor largest = padded.abs().amax(1);
  scales.copy_(largest.masked_fill(largest < kLeastBlockScale, 0));
  const Tensor ratio = (padded / scales.unsqueeze(1))
                           .masked_fill(scales.unsqueeze(1) == 0, 0)
                           .view({-1})
                           .narrow(0, 0, numel);
  const Tensor map = map_on(codes);
  const Tensor middles = (map.narrow(0, 0, 255) + map.narrow(0, 1, 255)) / 2;
  // As many as are below the value.
  const Tensor entries = torch::bucketize(ratio, middles);
  codes.copy_((entries + first_code(codes)).view(codes.sizes()));
}

void KernelSet::round_stochastically(
    const Tensor& values,
    Tensor rounded,
    const RandomBits& bits) const {
  const Tensor index = whole_index(bits.index, values);
  const auto low_key = static_cast<int64_t>(bits.key & kLowHalf);
  const auto high_key = static_cast<int64_t>(bits.key >> 32);
  const Tensor first = mix(((index & kLowHalf) + low_key) & kLowHalf);
  const Tensor random =
      mix((first + index.bitwise_right_shift(32) + high_key) & kLowHalf)
          .bitwise_right_shift(16)
          .to(torch::kInt);
  const Tensor up_or_down = (values.view(torch::kInt) + random)
                                .bitwise_and(static_cast<int>(0xffff0000))
                                .view(torch::kFloat);
  const Tensor finite = torch::where(
      up_or_down.isinf(),
      values.view(torch::kInt)
          .bitwise_and(static_cast<int>(0xffff0000))
          .view(torch::kFloat),
      up_or_down);
  rounded.copy_(torch::where(values.isfinite(), finite, values));
}

void KernelSet::drop_elements(
    Tensor rows,
    const InputDropout& dropout,
    uint64_t key) const {
  // 64 MiB for each of some four tensors of 8-byte numbers at a time.
  constexpr int64_t kElementsAtOnce = 1 << 23;
  const int64_t rows_at_once = std::max<int64_t>(
      1, kElementsAtOnce / std::max<int64_t>(1, rows.size(1)));
  const Tensor keys =
      dropout.token_keys.reshape({-1, 1}) + static_cast<int64_t>(key);
  const Tensor features =
      torch::arange(rows.size(1), keys.options()) + dropout.first_feature;
  for (int64_t row = 0; row < rows.size(0); row += rows_at_once) {
    const int64_t count = std::min(rows_at_once, rows.size(0) - row);
    const Tensor row_keys = keys.narrow(0, row, count);
    const Tensor high_keys = row_keys.bitwise_right_shift(32) & kLowHalf;
    const Tensor first = mix((features + (row_keys & kLowHalf)) & kLowHalf);
    const Tensor words = mix((first + high_keys) & kLowHalf);
    rows.narrow(0, row, count)
        .masked_fill_(words < static_cast<int64_t>(dropout.threshold()), 0);
  }
}

}  // namespace brigade::ops
