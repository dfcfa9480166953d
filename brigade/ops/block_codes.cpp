#include "brigade/ops/block_codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kBlockCodesOp = "block_codes";

// torch.linspace(0.1, 1, count) in float32, to the last bit: from both ends to
// the middle, each product and sum rounded once.
std::vector<float> boundaries(int count) {
  const float step = (1.0F - 0.1F) / static_cast<float>(count - 1);
  std::vector<float> values;
  for (int i = 0; i < count; ++i)
    values.push_back(
        i < count / 2
            ? std::fma(step, static_cast<float>(i), 0.1F)
            : std::fma(-step, static_cast<float>(count - 1 - i), 1.0F));
  return values;
}

std::array<float, 256> make_map(bool is_signed) {
  constexpr int kDecades = 7;
  std::vector<float> entries{0.0F, 1.0F};
  for (int i = 0; i < kDecades; ++i) {
    const auto ends = boundaries((1 << (is_signed ? i : i + 1)) + 1);
    const auto decade = static_cast<float>(std::pow(10.0, i - (kDecades - 1)));
    for (size_t k = 0; k + 1 < ends.size(); ++k) {
      const float middle = decade * ((ends[k] + ends[k + 1]) / 2.0F);
      entries.push_back(middle);
      if (is_signed)
        entries.push_back(-middle);
    }
  }
  std::sort(entries.begin(), entries.end());
  std::array<float, 256> map{};
  std::copy(entries.begin(), entries.end(), map.begin());
  return map;
}

void check_codes(const Tensor& codes, const Tensor& scales) {
  require(
      is_codes(codes.scalar_type()) && codes.is_contiguous() &&
          scales.scalar_type() == torch::kFloat && scales.is_contiguous() &&
          scales.numel() == count_blocks(codes.numel()),
      kBlockCodesOp,
      "codes {}, scales {}: expected contiguous int8 or uint8, and a float32 "
      "scale for each {} of them",
      describe(codes),
      describe(scales),
      kBlockNumel);
}

}  // namespace

const std::array<float, 256>& dynamic_map(torch::ScalarType codes) {
  static const std::array<float, 256> with_sign = make_map(true);
  static const std::array<float, 256> without_sign = make_map(false);
  return codes == torch::kChar ? with_sign : without_sign;
}

Tensor
decode_blocks(const Tensor& codes, const Tensor& scales, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_codes(codes, scales);
  return choose_kernels(kBlockCodesOp, kernels, {&scales})
      .decode_blocks(codes, scales);
}

Tensor
recodable_values(const Tensor& codes, const Tensor& scales, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  const Tensor values = decode_blocks(codes, scales, kernels);
  if (codes.scalar_type() != torch::kChar)
    return values;
  const Tensor lowest = -scales.repeat_interleave(kBlockNumel)
                             .narrow(0, 0, codes.numel())
                             .view(codes.sizes());
  return torch::where(codes == -128, lowest, values);
}

void encode_blocks(
    const Tensor& values,
    Tensor codes,
    Tensor scales,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_codes(codes, scales);
  require(
      values.scalar_type() == torch::kFloat && values.is_contiguous() &&
          values.sizes() == codes.sizes(),
      kBlockCodesOp,
      "values {}, codes {}: expected contiguous float32 of the codes' shape",
      describe(values),
      describe(codes));
  choose_kernels(kBlockCodesOp, kernels, {&values})
      .encode_blocks(values, codes, scales);
}

}  // namespace brigade::ops
