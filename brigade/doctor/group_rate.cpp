#include "brigade/doctor/group_rate.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "brigade/metrics/clock.h"

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
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
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

}  // namespace brigade
