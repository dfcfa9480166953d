#include "brigade/calibrate/measure.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <tuple>
#include <vector>

#include "brigade/calibrate/collective_timer.h"
#include "brigade/calibrate/measured_layer.h"
#include "brigade/calibrate/phase_timer.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/comm/self_communicator.h"
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

class Measurement {
 public:
  Measurement(
      const LaunchEnvironment& environment,
      const MeasureOptions& options)
      : environment_(environment),
        options_(options),
        store_(
            environment.world_size > 1
                ? open_store(environment, std::chrono::minutes(1))
                : nullptr),
        world_(mesh(environment.world_size)->world()),
        timer_(world_, options.seconds_each) {}

  machine::Measurements run() {
    machine::Measurements result;
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
    measure_elementwise(result);
    result.logits_bytes_per_s = logits(result.bf16_products);
    result.layer = layer(false);
    result.recomputed_layer = layer(true);
    measure_collectives(result);
    result.device_spread = spread(timer_.total_seconds());
    result.taken_by_others = timer_.taken_by_others();
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

  // As many as take so many bytes that no cache holds them, as a model's.
  size_t layers_of_size(int64_t bytes_each) const {
    constexpr int64_t kMost = 256;
    return static_cast<size_t>(
        std::clamp<int64_t>(options_.layers_bytes / bytes_each, 1, kMost));
  }
  template <typename Layer>
  std::vector<Layer> layers_of(
      int64_t bytes_each,
      const std::function<Layer()>& make) const {
    std::vector<Layer> layers;
    for (size_t i = 0; i < layers_of_size(bytes_each); ++i)
      layers.push_back(make());
    return layers;
  }

  // A norm of one row, forward and backward: two ops with hardly any work.
  double kernel_gap() {
    const Tensor x = torch::randn({1, 64}, torch::requires_grad());
    const Tensor weight = torch::ones({64}, torch::requires_grad());
    const Tensor grad = torch::ones({1, 64});
    return timer_.seconds([&] {
      const Tensor y = ops::rms_norm(x, weight, kEps);
      torch::autograd::grad({y}, {x, weight}, {grad});
    }) / 2;
  }

  machine::LayerSample layer_sizes() const {
    machine::LayerSample sample;
    sample.hidden = options_.largest_product / 2;
    sample.heads =
        std::max<int64_t>(1, sample.hidden / machine::kCalibrationHeadDim);
    sample.intermediate = 3 * sample.hidden;
    sample.sequences = 2;
    sample.sequence_tokens = std::max<int64_t>(2, options_.tokens / 2);
    return sample;
  }

  // The standard deviation of the ranks' times, over their mean.
  double spread(double own_seconds) const {
    const int ranks = world_->size();
    if (ranks == 1)
      return 0;
    const Tensor own = torch::full({1}, own_seconds, torch::kDouble);
    const Tensor all = torch::empty({ranks}, torch::kDouble);
    world_->all_gather(all, own)->wait();
    return std::min(1.0, (all.std() / all.mean()).item<double>());
  }

  LayerStack stack(
      const machine::LayerSample& sizes,
      const CommunicatorPtr& group,
      bool is_recomputed = false) const {
    const int64_t parameters =
        sizes.hidden * (4 * sizes.hidden + 3 * sizes.intermediate);
    return {sizes, group, layers_of_size(4 * parameters), is_recomputed};
  }

  // One of many layers, forward and backward, of a rank by itself.
  machine::LayerSample layer(bool is_recomputed) {
    machine::LayerSample sample = layer_sizes();
    LayerStack layers = stack(sample, make_self_communicator(), is_recomputed);
    const Phases all =
        timer_.phases([&] { layers.forward(); }, [&] { layers.backward(); });
    const auto count = static_cast<double>(layers.size());
    sample.forward_s = all.forward / count;
    sample.backward_s = all.backward / count;
    return sample;
  }

  machine::SharedLayerSample shared_layer(
      const machine::LayerSample& sizes,
      const CommunicatorPtr& group) {
    constexpr int kRuns = 15;
    machine::SharedLayerSample sample = {sizes, layer_sizes()};
    sample.single.sequence_tokens = sizes.sequence_tokens / sizes.cp;
    LayerStack shared = stack(sample.shared, group);
    LayerStack single = stack(sample.single, make_self_communicator());
    const std::vector<double> seconds = lockstep_seconds(
        *world_,
        {[&] { shared.forward(); },
         [&] { shared.backward(); },
         [&] { single.forward(); },
         [&] { single.backward(); }},
        kRuns);
    const auto count = static_cast<double>(shared.size());
    sample.shared.forward_s = seconds[0] / count;
    sample.shared.backward_s = seconds[1] / count;
    sample.single.forward_s = seconds[2] / count;
    sample.single.backward_s = seconds[3] / count;
    return sample;
  }

  // With tensor parallel, in both layouts of tokens, and with context parallel
  // over a group of ranks; not where that has more ranks than there are heads,
  // or chunks of tokens.
  void add_shared_layers(
      const CommunicatorPtr& group,
      std::vector<machine::SharedLayerSample>& layers) {
    constexpr int kShorter = 4;
    const int ranks = group->size();
    const machine::LayerSample sizes = layer_sizes();
    for (int64_t tokens :
         {sizes.sequence_tokens / kShorter, sizes.sequence_tokens}) {
      if (tokens < ranks)
        continue;
      machine::LayerSample sample = sizes;
      sample.sequence_tokens = tokens;
      sample.tp = ranks;
      if (sizes.heads % ranks == 0 && tokens % ranks == 0) {
        for (TokenLayout layout :
             {TokenLayout::kReplicated, TokenLayout::kSharded}) {
          sample.tokens = layout;
          layers.push_back(shared_layer(sample, group));
        }
      }
      sample = sizes;
      sample.cp = ranks;
      sample.sequence_tokens = ranks * tokens;  // as many of each rank
      if (tokens % 2 == 0)
        layers.push_back(shared_layer(sample, group));
    }
  }

  // Seconds of one layer's forward, and its gradients of input and weight:
  // [tokens, n] [n, n]. All layers' forwards come before their backwards, so
  // operands are as far from the core as in training.
  double products_seconds(torch::ScalarType dtype, int64_t tokens, int64_t n) {
    const torch::NoGradGuard no_grad;
    struct Layer {
      Tensor x;
      Tensor weight;
      Tensor grad;
    };
    const int64_t element = dtype == torch::kFloat ? 4 : 2;
    const auto layers =
        layers_of<Layer>(element * n * (tokens + n) + 4 * n * n, [&] {
          return Layer{
              torch::randn({tokens, n}).to(dtype),
              torch::randn({n, n}).to(dtype),
              torch::zeros({n, n})};
        });
    const Tensor dy = torch::randn({tokens, n}).to(dtype);
    const Phases all = timer_.phases(
        [&] {
          for (const Layer& layer : layers)
            ops::linear(layer.x, layer.weight);
        },
        [&] {
          for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
            ops::linear_backward_input(dy, layer->weight);
            ops::linear_backward_weight(dy, layer->x, layer->grad);
          }
        });
    return (all.forward + all.backward) / static_cast<double>(layers.size());
  }

  // What three products take whatever the rows: of two numbers of rows, what
  // the time would be for none.
  double weight_element() {
    constexpr int64_t kFewer = 8;
    const int64_t n = options_.largest_product;
    const int64_t few = std::max<int64_t>(1, options_.tokens / kFewer);
    const double of_few = products_seconds(torch::kBFloat16, few, n);
    const double of_many = products_seconds(torch::kBFloat16, few * kFewer, n);
    const double of_none = (kFewer * of_few - of_many) / (kFewer - 1);
    return std::clamp(of_none, 0.0, of_few) / static_cast<double>(3 * n * n);
  }

  std::vector<machine::ProductRate> products(
      torch::ScalarType dtype,
      double weight_element_s) {
    std::vector<machine::ProductRate> rates;
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
                 {kBatch, tokens, kHeads, machine::kCalibrationHeadDim})
          .to(torch::kBFloat16)
          .requires_grad_();
    };
    const Tensor q = operand();
    const Tensor k = operand();
    const Tensor v = operand();
    const Tensor grad = torch::ones_like(q);
    const double seconds = timer_.seconds([&] {
      const Tensor out = ops::attention(q, k, v).out;
      torch::autograd::grad({out}, {q, k, v}, {grad});
    });
    const double keys = static_cast<double>(tokens + 1) / 2;
    return 3.5 * 4 * kBatch * static_cast<double>(tokens) * keys * kHeads *
           machine::kCalibrationHeadDim / seconds;
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
    const double seconds = timer_.seconds([&] {
      ops::sum_of_squares(grad);
      ops::adamw_step(
          {}, {grad, mean, square, weight, low}, ops::AfterRead::kZero);
    });
    constexpr double kBytes = 4 + 2 * 10 + 2 * 4 + 2 * 2;
    return kBytes * static_cast<double>(numel) / seconds;
  }

  // The ops and bytes of planner/layer_time.cpp: a residual and its norm move 5
  // elements forward and 4 backward, a gated activation 3 and 5. What a layer
  // reads was just made; what its backward reads was made long before.
  void measure_elementwise(machine::Measurements& result) {
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
    struct Layer {
      Tensor sum, normed, gated;
    };
    auto layers = layers_of<Layer>(
        2 * options_.tokens * (2 * width + 3 * inner), [] { return Layer{}; });
    const Phases all = timer_.phases(
        [&] {
          for (Layer& layer : layers) {
            std::tie(layer.sum, layer.normed) =
                ops::add_rms_norm(x, residual, weight, kEps);
            layer.gated = ops::swiglu(gate_up);
          }
        },
        [&] {
          for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
            torch::autograd::grad({layer->gated}, {gate_up}, {inner_grad});
            torch::autograd::grad(
                {layer->sum, layer->normed}, {x, residual}, {grad, grad});
          }
        });
    const auto bytes = [&](int64_t of_width, int64_t of_inner) {
      return kElementBytes * static_cast<double>(layers.size()) *
             static_cast<double>(options_.tokens) *
             static_cast<double>(of_width * width + of_inner * inner);
    };
    result.elementwise_bytes_per_s = bytes(5, 3) / all.forward;
    result.elementwise_backward_bytes_per_s = bytes(4, 5) / all.backward;
  }

  // The head with its loss, less three products at their rate: what is left is
  // the passes over logits, 8 bytes each (planner/layer_time.cpp).
  double logits(const std::vector<machine::ProductRate>& products) {
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
    const double whole = timer_.seconds([&] {
      const Tensor loss = ops::linear_cross_entropy(hidden, weight, targets);
      torch::autograd::grad({loss}, {hidden, weight});
    });
    const auto rate = std::ranges::lower_bound(
        products,
        std::min(width, options_.tokens),
        {},
        &machine::ProductRate::size);
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
  void measure_collectives(machine::Measurements& result) {
    const int ranks = environment_.world_size;
    const CollectiveTimer timer(world_, options_);
    for (int size = 2; size <= ranks; ++size) {
      if (ranks % size != 0)
        continue;
      const std::unique_ptr<ProcessMesh> groups =
          size == ranks ? nullptr : mesh(size);
      const CommunicatorPtr group = groups ? groups->axis(Axis::kTp) : world_;
      timer.add_all_reduces(*group, result.all_reduces);
      timer.add_collectives(*group, result.collectives);
      add_shared_layers(group, result.shared_layers);
    }
    if (ranks > 1)
      result.overlap = timer.overlap();
  }

  LaunchEnvironment environment_;
  MeasureOptions options_;
  StorePtr store_;
  CommunicatorPtr world_;
  PhaseTimer timer_;
};

}  // namespace

machine::Measurements measure_machine(
    const LaunchEnvironment& environment,
    const MeasureOptions& options) {
  return Measurement(environment, options).run();
}

}  // namespace brigade
