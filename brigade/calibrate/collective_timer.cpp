#include "brigade/calibrate/collective_timer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "brigade/ops/linear.h"

namespace brigade {

using torch::Tensor;

void CollectiveTimer::add_all_reduces(
    Communicator& group,
    std::vector<planner::AllReduceSample>& samples) const {
  for (int64_t bytes = 1 << 12; bytes <= options_.largest_message_bytes;
       bytes *= 16) {
    Tensor values = torch::zeros({bytes / 4});
    samples.push_back(
        {group.size(), bytes, between_computations_seconds(bytes, [&] {
           group.all_reduce(values)->wait();
         })});
  }
}

void CollectiveTimer::add_collectives(
    Communicator& group,
    std::vector<planner::CollectiveSample>& samples) const {
  using planner::Collective;
  for (int i = 0; i < planner::kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
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

double CollectiveTimer::lockstep_seconds(
    const std::function<void()>& work,
    int runs) const {
  const auto nothing = [] {};
  return lockstep_phases(*world_, work, nothing, runs).forward;
}

// Of a collective as training meets it: ranks come from computations that
// never take quite as long as their peers', and cores that compute have to
// turn to it first.
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
    return lockstep_seconds(
        [&] {
          for (int i = 0; i < kTimes; ++i) {
            compute();
            if (communicates)
              work();
          }
        },
        runs);
  };
  const double alone = repeat(false);
  return std::max(1e-9, (repeat(true) - alone) / kTimes);
}

double CollectiveTimer::contention() const {
  const int64_t n = options_.largest_product;
  const Tensor x = torch::randn({options_.tokens, n}).to(torch::kBFloat16);
  const Tensor weight = torch::randn({n, n}).to(torch::kBFloat16);
  Tensor values = torch::zeros({options_.largest_message_bytes / 4});
  const torch::NoGradGuard no_grad;
  const auto reduce = [&] { return world_->all_reduce(values); };
  const double communication = lockstep_seconds([&] { reduce()->wait(); });
  const double one = lockstep_seconds([&] { ops::linear(x, weight); });
  // As long as the all-reduce; all ranks agree on how many.
  Tensor repeats = torch::full({1}, std::max(1.0, communication / one));
  world_->all_reduce(repeats, ReduceOp::kMax)->wait();
  const auto count = static_cast<int>(std::ceil(repeats.item<float>()));
  const auto compute = [&] {
    for (int i = 0; i < count; ++i)
      ops::linear(x, weight);
  };
  const double computation = lockstep_seconds(compute);
  const double both = lockstep_seconds([&] {
    const WorkPtr work = reduce();
    compute();
    work->wait();
  });
  const double longer = std::max(computation, communication);
  const double shorter = std::min(computation, communication);
  return std::clamp((both - longer) / shorter, 0.0, 1.0);
}

}  // namespace brigade
