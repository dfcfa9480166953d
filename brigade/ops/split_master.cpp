#include "brigade/ops/split_master.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cmath>

#include "brigade/kernels/aten/plain.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

constexpr int64_t kGrain = 1 << 16;
constexpr uint32_t kNan = 0x7fc00000;

void check(const Tensor& master, const Tensor& weight, const Tensor& low) {
  require(
      master.scalar_type() == torch::kFloat &&
          weight.scalar_type() == torch::kBFloat16 &&
          low.scalar_type() == torch::kShort &&
          master.sizes() == weight.sizes() && weight.sizes() == low.sizes() &&
          master.is_contiguous() && weight.is_contiguous() &&
          low.is_contiguous(),
      "split_master",
      "master {}, weight {}, low {}: expected contiguous float32, bf16 and "
      "int16 of one shape",
      describe(master),
      describe(weight),
      describe(low));
}

}  // namespace

Tensor join_master(const Tensor& weight, const Tensor& low) {
  if (!weight.device().is_cpu())
    return plain::join_master(weight, low);
  const Tensor master =
      at::empty(weight.sizes(), weight.options().dtype(torch::kFloat));
  check(master, weight, low);
  const auto* upper = data<uint16_t>(weight);
  const auto* lower = data<int16_t>(low);
  auto* joined = data<uint32_t>(master);
  at::parallel_for(0, weight.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      joined[i] =
          (uint32_t{upper[i]} << 16) + static_cast<uint32_t>(int32_t{lower[i]});
  });
  return master;
}

void split_master(const Tensor& master, Tensor weight, Tensor low) {
  check(master, weight, low);
  if (!master.device().is_cpu())
    return plain::split_master(master, weight, low);
  const auto* whole = data<float>(master);
  auto* upper = data<uint16_t>(weight);
  auto* lower = data<uint16_t>(low);
  at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t bits =
          std::isnan(whole[i]) ? kNan : std::bit_cast<uint32_t>(whole[i]);
      upper[i] = static_cast<uint16_t>((bits + 0x8000) >> 16);
      lower[i] = static_cast<uint16_t>(bits);
    }
  });
}

}  // namespace brigade::ops
