#include "brigade/calibrate/collective_timer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "brigade/ops/linear.h"

namespace brigade {

using torch::Tensor;

namespace {

constexpr int kRuns = 15;

}  // namespace

void CollectiveTimer::add_all_reduces(
    Communicator& group,
    std::vector<machine::AllReduceSample>& samples) const {
  for (int64_t bytes = 1 << 12; bytes <= options_.largest_message_bytes;
       bytes *= 16) {
    Tensor values = torch::zeros({bytes / 4});
    constexpr int kTimes = 10;
    const auto work = [&] {
      for (int i = 0; i < kTimes; ++i)
        group.all_reduce(values)->wait();
    };
    const double seconds = lockstep_seconds(*world_, {work}, kRuns).front();
    samples.push_back({group.size(), bytes, seconds / kTimes});
  }
}

void CollectiveTimer::add_collectives(
    Communicator& group,
    std::vector<machine::CollectiveSample>& samples) const {
  using machine::Collective;
  for (Collective collective :
       {Collective::kAllReduce,
        Collective::kReduceScatter,
        Collective::kAllGather}) {
    for (int64_t bytes = 1 << 12; bytes <= options_.largest_message_bytes;
         bytes *= 8) {
      const int64_t part = bytes / 2 / group.size();
      const auto bf16 = torch::dtype(torch::kBFloat16);
      const Tensor all = torch::zeros({part * group.size()}, bf16);
      const Tensor own = torch::zeros({part}, bf16);
      const double seconds = between_computations_seconds(bytes, [&] {
        if (collective == Collective::kAllReduce)
          group.all_reduce(all)->wait();
        else if (collective == Collective::kReduceScatter)
          group.reduce_scatter(own, all)->wait();
        else
          group.all_gather(all, own)->wait();
      });
      samples.push_back({collective, group.size(), bytes, seconds});
    }
  }
}

// Times a collective as training meets it: ranks come from computations that
// never take quite as long as their peers', and cores that compute have to turn
// to it first.
double CollectiveTimer::between_computations_seconds(
    int64_t bytes,
    const std::function<void()>& work) const {
  constexpr int kTimes = 10;
  // Short ones are the more uneven.
  constexpr int64_t kShort = 1 << 21;
  const int runs = bytes <= kShort ? 41 : 11;
  constexpr int64_t kWidth = 256;
  const int64_t n = std::min<int64_t>(kWidth, options_.largest_product);
  const Tensor x = torch::randn({options_.tokens, n}).to(torch::kBFloat16);
  const Tensor weight = torch::randn({n, n}).to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  const auto compute = [&] {
    for (int i = 0; i < 4; ++i)
      ops::linear(x, weight);
  };
  const auto repeat = [&](bool communicates) {
    for (int i = 0; i < kTimes; ++i) {
      compute();
      if (communicates)
        work();
    }
  };
  const std::vector<double> seconds = lockstep_seconds(
      *world_, {[&] { repeat(false); }, [&] { repeat(true); }}, runs);
  return std::max(1e-9, (seconds[1] - seconds[0]) / kTimes);
}

// As in a backward pass: buckets, one after another, beside a computation that
// takes longer than all of them.
machine::OverlapSample CollectiveTimer::overlap() const {
  constexpr int kBuckets = 4;
  constexpr double kTimesAsLong = 3;
  const int64_t n = options_.largest_product;
  const Tensor x = torch::randn({options_.tokens, n}).to(torch::kBFloat16);
  const Tensor weight = torch::randn({n, n}).to(torch::kBFloat16);
  const Tensor values =
      torch::zeros({kBuckets, options_.largest_message_bytes / 4});
  const torch::NoGradGuard no_grad;
  const auto multiply = [&] { ops::linear(x, weight); };
  const auto reduce = [&](const std::function<void()>& beside) {
    std::vector<WorkPtr> buckets;
    for (int i = 0; i < kBuckets; ++i)
      buckets.push_back(world_->all_reduce(values[i]));
    beside();
    for (const WorkPtr& bucket : buckets)
      bucket->wait();
  };
  const std::vector<double> each =
      lockstep_seconds(*world_, {[&] { reduce([] {}); }, multiply}, kRuns);
  // All ranks agree on how many.
  Tensor repeats =
      torch::full({1}, std::max(1.0, kTimesAsLong * each[0] / each[1]));
  world_->all_reduce(repeats, ReduceOp::kMax)->wait();
  const auto count = static_cast<int>(std::ceil(repeats.item<float>()));
  const auto compute = [&] {
    for (int i = 0; i < count; ++i)
      multiply();
  };
  const std::vector<double> seconds =
      lockstep_seconds(*world_, {compute, [&] { reduce(compute); }}, kRuns);
  return {
      world_->size(),
      options_.largest_message_bytes,
      kBuckets,
      std::max(0.0, seconds[1] - seconds[0])};
}

}  // namespace brigade
