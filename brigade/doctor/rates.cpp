#include "brigade/doctor/rates.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "brigade/base/median.h"
#include "brigade/comm/device_stream.h"
#include "brigade/metrics/clock.h"
#include "brigade/ops/expert_linear.h"

namespace brigade {
namespace {

double median_seconds(
    Communicator& group,
    int repetitions,
    const std::function<void()>& work) {
  std::vector<double> seconds;
  work();  // connections and memory
  for (int i = 0; i < repetitions; ++i) {
    group.barrier();
    const int64_t begin_ns = steady_now_ns();
    work();
    seconds.push_back(static_cast<double>(steady_now_ns() - begin_ns) / 1e9);
  }
  return upper_median(std::move(seconds));
}

}  // namespace

GroupRate measure_group(Communicator& group, int64_t bytes) {
  constexpr int kShort = 50;
  constexpr int kLong = 7;
  const int64_t ranks = group.size();
  const int64_t numel = bytes / 4 / ranks * ranks;
  const auto options = torch::device(group.options().device);
  const auto small = torch::zeros({1}, options);
  const auto large = torch::zeros({numel}, options);
  const auto received = torch::zeros({numel}, options);
  const double sent = 4.0 * static_cast<double>(numel) *
                      static_cast<double>(ranks - 1) /
                      static_cast<double>(ranks);
  GroupRate rate;
  rate.latency_us = 1e6 * median_seconds(group, kShort, [&] {
                      group.all_reduce(small)->wait_on_host();
                    });
  rate.all_reduce_gb_per_s = 2 * sent / 1e9 / median_seconds(group, kLong, [&] {
                               group.all_reduce(large)->wait_on_host();
                             });
  rate.exchange_gb_per_s = sent / 1e9 / median_seconds(group, kLong, [&] {
                             group.all_to_all(received, large)->wait_on_host();
                           });
  return rate;
}

double expert_flops(const torch::TensorOptions& options, int64_t rows) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kLeastNs = 100'000'000;
  constexpr int kLeastRuns = 8;
  constexpr int64_t kMeasuredExperts = 16;
  constexpr int64_t kMeasuredWidth = 1024;
  const auto x =
      torch::ones({kMeasuredExperts * rows, kMeasuredWidth}, options);
  const auto weights =
      torch::ones({kMeasuredExperts, kMeasuredWidth, kMeasuredWidth}, options);
  const std::vector<int64_t> counts(kMeasuredExperts, rows);
  std::vector<std::vector<torch::Tensor>> of_experts;
  for (int64_t expert = 0; expert < kMeasuredExperts; ++expert)
    of_experts.push_back({weights[expert]});
  const double flops =
      2.0 * static_cast<double>(weights.numel()) * static_cast<double>(rows);
  const int64_t start = steady_now_ns();
  double best = 0;
  for (int run = 0; run < kLeastRuns || steady_now_ns() - start < kLeastNs;
       ++run) {
    const int64_t begin = steady_now_ns();
    const auto y = ops::expert_linear(x, counts, of_experts, {});
    StreamMark::of_current_stream(options.device()).wait_on_host();
    const double seconds = static_cast<double>(steady_now_ns() - begin) / 1e9;
    best = std::max(best, flops / seconds);
  }
  return best;
}

}  // namespace brigade
