// AdamW on flat memory, the sum of squares for clipping, and the masters of
// bf16 weights.
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "brigade/kernels/cpu/adamw_kernel.h"
#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"

namespace brigade::ops {
namespace {

// Elements per task, and per partial sum: fixed, so that a sum's order does not
// depend on the number of threads.
constexpr int64_t kChunk = 1 << 16;
constexpr uint32_t kNan = 0x7fc00000;

}  // namespace

void CpuKernels::adamw_step(
    const AdamWStep& step,
    const AdamWTensors& tensors,
    AfterRead after_read) const {
  const bool is_split = tensors.master_low.defined();
  const auto t = static_cast<double>(step.step);
  const auto narrow = [](double value) { return static_cast<float>(value); };
  with_element_type(tensors.weight, [&](auto element) {
    using T = decltype(element);
    const AdamWKernel<T> kernel{
        .main_grad = data<float>(tensors.main_grad),
        .exp_avg = data<float>(tensors.exp_avg),
        .exp_avg_sq = data<float>(tensors.exp_avg_sq),
        .weight = data<T>(tensors.weight),
        .master_low = is_split ? data<uint16_t>(tensors.master_low) : nullptr,
        .zero_main_grad = after_read == AfterRead::kZero,
        .grad_scale = narrow(step.grad_scale),
        .decay = narrow(1 - step.lr * step.weight_decay),
        .beta1 = narrow(step.beta1),
        .one_minus_beta1 = narrow(1 - step.beta1),
        .beta2 = narrow(step.beta2),
        .one_minus_beta2 = narrow(1 - step.beta2),
        .inverse_root_correction2 =
            narrow(1 / std::sqrt(1 - std::pow(step.beta2, t))),
        .eps = narrow(step.eps),
        .step_size = narrow(step.lr / (1 - std::pow(step.beta1, t)))};
    run_in_tasks(tensors.main_grad.numel(), kChunk, adamw_kernel, kernel);
  });
}

Tensor CpuKernels::sum_of_squares(const Tensor& values) const {
  const int64_t numel = values.numel();
  const int64_t chunks = (numel + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
  const float* first = data<float>(values);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk)
      partial[static_cast<size_t>(chunk)] = sum_of_squares_kernel(
          first + chunk * kChunk, std::min(kChunk, numel - chunk * kChunk));
  });
  double sum = 0;
  for (const double value : partial)
    sum += value;
  return at::scalar_tensor(sum, torch::kDouble);
}

Tensor CpuKernels::join_master(const Tensor& weight, const Tensor& low) const {
  const Tensor master =
      at::empty(weight.sizes(), weight.options().dtype(torch::kFloat));
  const auto* upper = data<uint16_t>(weight);
  const auto* lower = data<int16_t>(low);
  auto* joined = data<uint32_t>(master);
  at::parallel_for(0, weight.numel(), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      joined[i] =
          (uint32_t{upper[i]} << 16) + static_cast<uint32_t>(int32_t{lower[i]});
  });
  return master;
}

void CpuKernels::split_master(const Tensor& master, Tensor weight, Tensor low)
    const {
  const auto* whole = data<float>(master);
  auto* upper = data<uint16_t>(weight);
  auto* lower = data<uint16_t>(low);
  at::parallel_for(0, master.numel(), kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t bits =
          std::isnan(whole[i]) ? kNan : std::bit_cast<uint32_t>(whole[i]);
      upper[i] = static_cast<uint16_t>((bits + 0x8000) >> 16);
      lower[i] = static_cast<uint16_t>(bits);
    }
  });
}

}  // namespace brigade::ops
