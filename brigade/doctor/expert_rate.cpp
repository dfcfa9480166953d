#include "brigade/doctor/expert_rate.h"

#include <algorithm>

#include "brigade/comm/device_stream.h"
#include "brigade/metrics/clock.h"
#include "brigade/ops/linear.h"

namespace brigade {

double expert_flops(const torch::TensorOptions& options, int64_t rows) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kLeastNs = 100'000'000;
  constexpr int kLeastRuns = 8;
  constexpr int64_t kMeasuredExperts = 16;
  constexpr int64_t kMeasuredWidth = 1024;
  const auto x = torch::ones({rows, kMeasuredWidth}, options);
  const auto weights =
      torch::ones({kMeasuredExperts, kMeasuredWidth, kMeasuredWidth}, options);
  const double flops =
      2.0 * static_cast<double>(weights.numel()) * static_cast<double>(rows);
  const int64_t start = steady_now_ns();
  double best = 0;
  for (int run = 0; run < kLeastRuns || steady_now_ns() - start < kLeastNs;
       ++run) {
    const int64_t begin = steady_now_ns();
    for (int64_t expert = 0; expert < kMeasuredExperts; ++expert)
      const auto y = ops::linear(x, weights[expert]);
    StreamMark::of_current_stream(options.device()).wait_on_host();
    const double seconds = static_cast<double>(steady_now_ns() - begin) / 1e9;
    best = std::max(best, flops / seconds);
  }
  return best;
}

}  // namespace brigade
