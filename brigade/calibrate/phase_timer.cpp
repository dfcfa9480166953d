#include "brigade/calibrate/phase_timer.h"

#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>

#include "brigade/base/median.h"

namespace brigade {
namespace {

// The CPU time of all threads of this process.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace

Phases PhaseTimer::phases(
    const std::function<void()>& forward,
    const std::function<void()>& backward) {
  // Where one takes longer than all should, on a slow processor, three do.
  constexpr size_t kFew = 8;
  constexpr size_t kFewest = 3;
  const double first = seconds_of(forward) + seconds_of(backward);
  const size_t least = first < seconds_each_ ? kFew : kFewest;
  world_->barrier();
  std::vector<double> forwards;
  std::vector<double> backwards;
  double sum = 0;
  const double cpu_before = cpu_seconds();
  while (forwards.size() < least || sum < seconds_each_) {
    forwards.push_back(seconds_of(forward));
    backwards.push_back(seconds_of(backward));
    sum += forwards.back() + backwards.back();
  }
  wall_ += sum;
  cpu_ += cpu_seconds() - cpu_before;
  const Phases result = {upper_median(forwards), upper_median(backwards)};
  total_ += result.forward + result.backward;
  return result;
}

std::vector<double> lockstep_seconds(
    Communicator& world,
    const std::vector<std::function<void()>>& works,
    int most_runs) {
  constexpr int kFewest = 5;
  constexpr double kLongest = 5;
  double first = 0;
  for (const auto& work : works)
    first += seconds_of(work);
  // All ranks agree on how many.
  const torch::Tensor slowest = torch::full({1}, first, torch::kDouble);
  world.all_reduce(slowest, ReduceOp::kMax)->wait();
  const double affordable = kLongest / std::max(1e-9, slowest.item<double>());
  const auto runs = static_cast<int>(
      std::clamp<double>(affordable, std::min(kFewest, most_runs), most_runs));
  std::vector<std::vector<double>> times(works.size());
  for (int run = 0; run < runs; ++run) {
    for (size_t i = 0; i < works.size(); ++i) {
      world.barrier();
      times[i].push_back(seconds_of(works[i]));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& each : times)
    medians.push_back(upper_median(each));
  return medians;
}

double PhaseTimer::taken_by_others() const {
  return wall_ > 0 ? std::max(0.0, 1 - cpu_ / wall_) : 0;
}

}  // namespace brigade
