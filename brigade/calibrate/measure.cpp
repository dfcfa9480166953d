#include "brigade/calibrate/measure.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <utility>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/comm/world.h"
#include "brigade/metrics/metrics.h"
#include "brigade/ops/adamw.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr double kElementBytes = 2;  // bf16
constexpr double kEps = 1e-5;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Of all threads of this process.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Of what else the machine does, the median still has much.
double lower_quartile(std::vector<double> times) {
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

class Measurement {
 public:
  Measurement(
      const LaunchEnvironment& environment,
      const MeasureOptions& options)
      : environment_(environment), options_(options) {
    if (environment.world_size > 1)
      store_ = open_store(environment, std::chrono::minutes(1));
    world_ = mesh(environment.world_size)->world();
  }

  planner::Measurements run() {
    planner::Measurements result;
    result.ranks = environment_.world_size;
    result.name = fmt::format("this machine, {} ranks", result.ranks);
    const int here = std::max(1, environment_.local_world_size);
    result.memory_bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) *
                          ::sysconf(_SC_PAGESIZE) / here;
    result.kernel_gap_s = kernel_gap();
    result.reserved_bytes = static_cast<int64_t>(resident_memory_gb() * 1e9);
    result.fp32_products = products(torch::kFloat, 0);
    result.weight_element_s = weight_element();
    result.bf16_products = products(torch::kBFloat16, result.weight_element_s);
    result.attention_flops_per_s = attention();
    result.memory_bytes_per_s = optimizer();
    result.elementwise_bytes_per_s = elementwise();
    result.logits_bytes_per_s = logits(result.bf16_products);
    measure_collectives(result);
    if (result.ranks > 1)
      result.contention = contention();
    result.taken_by_others = std::max(0.0, 1 - cpu_ / wall_);
    return result;
  }

 private:
  std::unique_ptr<ProcessMesh> mesh(int group_size) {
    const ParallelDims dims = {
        .dp = environment_.world_size / group_size, .tp = group_size};
    const CommunicatorOptions options = {.timeout = std::chrono::minutes(2)};
    return std::make_unique<ProcessMesh>(
        dims,
        environment_.rank,
        store_ ? store_->with_prefix(fmt::format("calibrate/{}", group_size))
               : store_,
        options);
  }

  // Over runs that all ranks begin together.
  double repeated_seconds(const std::function<void()>& work) {
    constexpr size_t kFewest = 8;
    work();
    world_->barrier();
    std::vector<double> times;
    double sum = 0;
    const double cpu_before = cpu_seconds();
    while (times.size() < kFewest || sum < options_.seconds_each) {
      times.push_back(seconds_of(work));
      sum += times.back();
    }
    wall_ += sum;
    cpu_ += cpu_seconds() - cpu_before;
    return lower_quartile(std::move(times));
  }

  // A norm of one row, forward and backward: two ops with hardly any work.
  double kernel_gap() {
    const Tensor x = torch::randn({1, 64}, torch::requires_grad());
    const Tensor weight = torch::ones({64}, torch::requires_grad());
    const Tensor grad = torch::ones({1, 64});
    return repeated_seconds(
               [&] { ops::rms_norm(x, weight, kEps).backward(grad); }) /
           2;
  }

  // Forward, and the gradients of input and weight: [tokens, n] [n, n]. In turn
  // of so many weights that no cache holds them, as a model's.
  double products_seconds(torch::ScalarType dtype, int64_t tokens, int64_t n) {
    constexpr size_t kMostLayers = 512;
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::randn({tokens, n}).to(dtype);
    struct Layer {
      Tensor weight;
      Tensor grad;
    };
    std::vector<Layer> layers;
    for (int64_t bytes = 0; layers.empty() || (bytes < options_.weights_bytes &&
                                               layers.size() < kMostLayers);
         bytes += static_cast<int64_t>(
             layers.back().weight.nbytes() + layers.back().grad.nbytes()))
      layers.push_back({torch::randn({n, n}).to(dtype), torch::zeros({n, n})});
    size_t next = 0;
    return repeated_seconds([&] {
      Layer& layer = layers[next++ % layers.size()];
      ops::linear(x, layer.weight);
      ops::linear_backward_input(x, layer.weight);
      ops::linear_backward_weight(x, x, layer.grad);
    });
  }

  // What three products take whatever the rows: of two numbers of rows, what
  // the time would be for none.
  double weight_element() {
    constexpr int64_t kFewer = 4;
    const int64_t n = options_.largest_product;
    const int64_t few = std::max<int64_t>(1, options_.tokens / kFewer);
    const double of_few = products_seconds(torch::kBFloat16, few, n);
    const double of_many = products_seconds(torch::kBFloat16, few * kFewer, n);
    const double of_none = (kFewer * of_few - of_many) / (kFewer - 1);
    return std::clamp(of_none, 0.0, of_few) / static_cast<double>(3 * n * n);
  }

  std::vector<planner::ProductRate> products(
      torch::ScalarType dtype,
      double weight_element_s) {
    std::vector<planner::ProductRate> rates;
    for (int64_t n = 32; n <= options_.largest_product; n *= 2) {
      const double elements = static_cast<double>(n) * static_cast<double>(n);
      const double seconds = products_seconds(dtype, options_.tokens, n);
      // A loud machine may give more for the weight than for all of it.
      constexpr double kLeast = 0.5;
      const double of_rows =
          std::max(kLeast * seconds, seconds - 3 * weight_element_s * elements);
      rates.push_back(
          {std::min(n, options_.tokens),
           3 * 2 * static_cast<double>(options_.tokens) * elements / of_rows});
    }
    return rates;
  }

  double attention() {
    constexpr int64_t kBatch = 2;
    constexpr int64_t kHeads = 4;
    const int64_t tokens = std::max<int64_t>(2, options_.tokens / kBatch);
    const auto operand = [&] {
      return torch::randn(
                 {kBatch, tokens, kHeads, planner::kCalibrationHeadDim})
          .to(torch::kBFloat16)
          .requires_grad_();
    };
    const Tensor q = operand();
    const Tensor k = operand();
    const Tensor v = operand();
    const Tensor grad = torch::ones_like(q);
    const double seconds =
        repeated_seconds([&] { ops::attention(q, k, v).out.backward(grad); });
    const double keys = static_cast<double>(tokens + 1) / 2;
    return 3.5 * 4 * kBatch * static_cast<double>(tokens) * keys * kHeads *
           planner::kCalibrationHeadDim / seconds;
  }

  // The bytes that planner/reduction_time.cpp counts: the norm reads the
  // gradient; AdamW reads and writes 10 bytes of states and the bf16 weight,
  // reads the gradient and clears it.
  double optimizer() {
    const int64_t numel = options_.optimizer_numel;
    const Tensor grad = torch::full({numel}, 1e-3);
    const Tensor mean = torch::zeros({numel});
    const Tensor square = torch::zeros({numel});
    const Tensor weight = torch::ones({numel}, torch::kBFloat16);
    const Tensor low = torch::zeros({numel}, torch::kShort);
    const torch::NoGradGuard no_grad;
    const double seconds = repeated_seconds([&] {
      ops::sum_of_squares(grad);
      ops::adamw_step(
          {}, grad, mean, square, weight, low, ops::AfterRead::kZero);
    });
    constexpr double kBytes = 4 + 2 * 10 + 2 * 4 + 2 * 2;
    return kBytes * static_cast<double>(numel) / seconds;
  }

  // The ops and bytes of planner/layer_time.cpp: a residual and its norm move 5
  // elements forward and 4 backward, a gated activation 3 and 5.
  double elementwise() {
    const int64_t width = options_.largest_product / 2;
    const int64_t inner = 3 * width;
    const auto leaf = [&](int64_t columns) {
      return torch::randn({options_.tokens, columns})
          .to(torch::kBFloat16)
          .requires_grad_();
    };
    const Tensor x = leaf(width);
    const Tensor residual = leaf(width);
    const Tensor weight = torch::ones({width}, torch::kBFloat16);
    const Tensor gate_up = leaf(2 * inner);
    const Tensor grad = torch::ones({options_.tokens, width}, torch::kBFloat16);
    const Tensor inner_grad =
        torch::ones({options_.tokens, inner}, torch::kBFloat16);
    const double seconds = repeated_seconds([&] {
      const auto [sum, normed] = ops::add_rms_norm(x, residual, weight, kEps);
      torch::autograd::backward({sum, normed}, {grad, grad});
      ops::swiglu(gate_up).backward(inner_grad);
    });
    const double elements = static_cast<double>(options_.tokens) *
                            static_cast<double>(9 * width + 8 * inner);
    return kElementBytes * elements / seconds;
  }

  // The head with its loss, less three products at their rate: what is left is
  // the passes over logits, 8 bytes each (planner/layer_time.cpp).
  double logits(const std::vector<planner::ProductRate>& products) {
    constexpr int64_t kVocabulary = 8192;
    const int64_t width = std::min<int64_t>(256, options_.largest_product);
    const Tensor hidden = torch::randn({options_.tokens, width})
                              .to(torch::kBFloat16)
                              .requires_grad_();
    const Tensor weight = torch::randn({kVocabulary, width})
                              .mul(0.02)
                              .to(torch::kBFloat16)
                              .requires_grad_();
    const Tensor targets =
        torch::arange(options_.tokens, torch::kLong).remainder(kVocabulary);
    const double whole = repeated_seconds(
        [&] { ops::linear_cross_entropy(hidden, weight, targets).backward(); });
    const auto rate = std::find_if(
        products.begin(), products.end(), [&](const planner::ProductRate& p) {
          return p.size >= std::min(width, options_.tokens);
        });
    const double elements =
        static_cast<double>(options_.tokens) * static_cast<double>(kVocabulary);
    const double product =
        3 * 2 * elements * static_cast<double>(width) /
        (rate == products.end() ? products.back() : *rate).flops_per_s;
    // Products inside the loss may be quicker than alone.
    constexpr double kLeast = 0.05;
    const double bytes = 8 * elements;
    return bytes / std::max(whole - product, kLeast * whole);
  }

  // Groups of every size that the ranks can be cut into, all at once.
  void measure_collectives(planner::Measurements& result) {
    const int ranks = environment_.world_size;
    for (int size = 2; size <= ranks; ++size) {
      if (ranks % size != 0)
        continue;
      const std::unique_ptr<ProcessMesh> groups =
          size == ranks ? nullptr : mesh(size);
      const CommunicatorPtr& group = groups ? groups->axis(Axis::kTp) : world_;
      for (int64_t bytes = 1 << 12; bytes <= options_.largest_message_bytes;
           bytes *= 16) {
        Tensor values = torch::zeros({bytes / 4});
        result.all_reduces.push_back(
            {size, bytes, between_computations_seconds([&] {
               group->all_reduce(values)->wait();
             })});
      }
      measure_activations(*group, result.collectives);
    }
  }

  // Of bf16, as tensor parallel exchanges them. Other code of the communicator
  // than that of fp32 gradients.
  void measure_activations(
      Communicator& group,
      std::vector<planner::CollectiveSample>& samples) const {
    using planner::Collective;
    const int64_t largest =
        std::min(options_.largest_message_bytes, options_.largest_activation);
    for (int i = 0; i < planner::kCollectives; ++i) {
      const auto collective = static_cast<Collective>(i);
      for (int64_t bytes = 1 << 12; bytes <= largest; bytes *= 8) {
        const int64_t part = bytes / 2 / group.size();
        const auto bf16 = torch::dtype(torch::kBFloat16);
        const Tensor all = torch::zeros({part * group.size()}, bf16);
        const Tensor own = torch::zeros({part}, bf16);
        const double seconds = between_computations_seconds([&] {
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

  // Collectives must be launched equally often by every rank.
  double lockstep_seconds(const std::function<void()>& work) const {
    constexpr int kRuns = 11;
    work();
    std::vector<double> times;
    for (int i = 0; i < kRuns; ++i) {
      world_->barrier();
      times.push_back(seconds_of(work));
    }
    return lower_quartile(std::move(times));
  }

  // Of a collective as training meets it: ranks come from computations that
  // never take quite as long as their peers', and cores that compute have to
  // turn to it first.
  double between_computations_seconds(const std::function<void()>& work) const {
    constexpr int kTimes = 10;
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
      return lockstep_seconds([&] {
        for (int i = 0; i < kTimes; ++i) {
          compute();
          if (communicates)
            work();
        }
      });
    };
    const double alone = repeat(false);
    return std::max(1e-9, (repeat(true) - alone) / kTimes);
  }

  // Of the shorter of a computation and an all-reduce that run at once, the
  // part that does not disappear.
  double contention() const {
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

  LaunchEnvironment environment_;
  MeasureOptions options_;
  StorePtr store_;
  CommunicatorPtr world_;
  double wall_ = 0;  // of all repeated computation
  double cpu_ = 0;   // of all threads
};

}  // namespace

planner::Measurements measure_machine(
    const LaunchEnvironment& environment,
    const MeasureOptions& options) {
  return Measurement(environment, options).run();
}

}  // namespace brigade
