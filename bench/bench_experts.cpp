// How near do the products of many experts, one after the other, come to one
// product of as many FLOPs, and a model with experts to a dense one whose
// tokens meet as many weights?
//
//   build/release/bench_experts [THREADS]      # default 1
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <time.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/openblas_threads.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model/init_weights.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::bench {
namespace {

using torch::Tensor;

constexpr int kRuns = 15;
constexpr int64_t kExperts = 32;
constexpr int64_t kWidth = 512;

// Processor time of all threads: other programs do not count.
int64_t processor_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

int64_t ns_of(const std::function<void()>& work) {
  const int64_t begin = processor_ns();
  work();
  return processor_ns() - begin;
}

// Medians of two that take turns, so that both meet the same machine.
struct Pair {
  double a_ms = 0;
  double b_ms = 0;
};
Pair compare(const std::function<void()>& a, const std::function<void()>& b) {
  a();
  b();
  std::vector<int64_t> of_a;
  std::vector<int64_t> of_b;
  for (int i = 0; i < kRuns; ++i) {
    of_a.push_back(ns_of(a));
    of_b.push_back(ns_of(b));
  }
  const auto median = [](std::vector<int64_t>& times) {
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]) / 1e6;
  };
  return {median(of_a), median(of_b)};
}

Tensor random_bf16(at::IntArrayRef sizes) {
  return (torch::rand(sizes) - 0.5).to(torch::kBFloat16);
}

void products(int64_t rows) {
  const torch::NoGradGuard no_grad;
  const ops::KernelSet& kernels = ops::cpu_kernels();
  const Tensor x = random_bf16({kExperts * rows, kWidth});
  const Tensor y = torch::empty_like(x);
  const Tensor w = random_bf16({kExperts, kWidth, kWidth});
  const Tensor dw = torch::zeros({kExperts, kWidth, kWidth});
  const auto x_of = x.split(rows);
  const auto y_of = y.split(rows);
  std::vector<ops::LinearOperands> each;
  for (int64_t e = 0; e < kExperts; ++e)
    each.push_back(
        {x_of[static_cast<size_t>(e)], w[e], y_of[static_cast<size_t>(e)]});
  const auto line = [&](const char* name,
                        const std::function<void()>& grouped,
                        const std::function<void()>& one) {
    const Pair times = compare(grouped, one);
    fmt::print(
        "{:>3} rows of {} experts, {:<16} {:>8.3f} ms, one product {:>8.3f} "
        "ms: {:.2f} of its rate\n",
        rows,
        kExperts,
        name,
        times.a_ms,
        times.b_ms,
        times.b_ms / times.a_ms);
    return times;
  };
  const Pair forward = line(
      "forward",
      [&] { kernels.linears(each); },
      [&] { kernels.linear(y, x, w[0], {}); });
  const Pair input = line(
      "input gradient",
      [&] { kernels.linear_input_grads(each); },
      [&] { kernels.linear_input_grad(x, y, w[0]); });
  const Pair weight = line(
      "weight gradient",
      [&] {
        for (int64_t e = 0; e < kExperts; ++e)
          kernels.linear_weight_grad(
              dw[e],
              each[static_cast<size_t>(e)].y,
              each[static_cast<size_t>(e)].x);
      },
      [&] { kernels.linear_weight_grad(dw[0], y, x); });
  const Pair floors =
      compare([&] { w.view(torch::kShort).max(); }, [&] { dw.add_(1); });
  fmt::print(
      "reading those weights takes {:.3f} ms, adding to those gradients "
      "{:.3f} ms\n",
      floors.a_ms,
      floors.b_ms);
  const double all = (forward.b_ms + input.b_ms + weight.b_ms) /
                     (forward.a_ms + input.a_ms + weight.a_ms);
  const double target = rows == 64 ? 0.85 : 0.6;
  fmt::print(
      "{:>3} rows of {} experts, all three: {:.2f} of its rate (target {}: "
      "{})\n",
      rows,
      kExperts,
      all,
      target,
      all >= target ? "met" : "missed");
}

std::shared_ptr<DecoderModel> make_model(nlohmann::json more) {
  nlohmann::json json = {
      {"vocab_size", 1024},
      {"hidden_size", kWidth},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 8},
      {"head_dim", 64}};
  json.update(more);
  std::vector<std::string> problems;
  const DecoderConfig config = parse_decoder_config(json, "", problems);
  if (!problems.empty())
    throw std::runtime_error(problems.front());
  ModelContext context = single_rank_context(config);
  context.dtype = torch::kBFloat16;
  context.weight_grad = ops::WeightGrad::kAccumulate;  // as training does
  auto model = std::make_shared<DecoderModel>(
      std::make_shared<const ModelContext>(std::move(context)),
      whole_model(config));
  const auto weights = model->named_parameters();
  const torch::NoGradGuard no_grad;
  for (const ParameterRow& row : list_parameters(config))
    weights[row.name].copy_(initial_weight(row, 1));
  // One buffer, as a bucket is.
  const auto parameters = model->parameters();
  int64_t numel = 0;
  for (const Tensor& weight : parameters)
    numel += weight.numel();
  const Tensor gradients = torch::zeros({numel});
  int64_t begin = 0;
  for (const Tensor& weight : parameters) {
    weight.mutable_grad() =
        gradients.narrow(0, begin, weight.numel()).view(weight.sizes());
    begin += weight.numel();
  }
  return model;
}

void steps() {
  constexpr int64_t kSequences = 4;
  constexpr int64_t kTokens = 512;
  const auto sparse = make_model(
      {{"model_type", "qwen3_moe"},
       {"intermediate_size", 1},
       {"moe_intermediate_size", 512},
       {"num_experts", 8},
       {"num_experts_per_tok", 2},
       {"norm_topk_prob", true}});
  const auto dense =
      make_model({{"model_type", "qwen3"}, {"intermediate_size", 1024}});
  const Tensor positions = torch::arange(kTokens, torch::kLong);
  // Other tokens each time, so that experts get other numbers of rows.
  const auto step = [&](DecoderModel& model) {
    const Tensor ids =
        torch::randint(1024, {kSequences, kTokens}, torch::kLong);
    model
        .forward(
            {.ids = ids, .targets = ids, .document_starts = {}}, {}, positions)
        .backward();
  };
  const Pair times = compare([&] { step(*sparse); }, [&] { step(*dense); });
  fmt::print(
      "forward and backward of {} tokens, 8 experts of width 512, 2 for each "
      "token: {:.1f} ms; dense, width 1024: {:.1f} ms: {:.2f} times\n",
      kSequences * kTokens,
      times.a_ms,
      times.b_ms,
      times.a_ms / times.b_ms);
}

int run(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? positive_number("THREADS", argv[1]) : 1);
  give_openblas_as_many_threads(argv);
  fmt::print(
      "bf16, {} threads, products of {} by {}, processor time\n",
      at::get_num_threads(),
      kWidth,
      kWidth);
  products(64);
  products(8);
  steps();
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  brigade::ops::set_up_tensor_memory();
  return brigade::bench::exit_code_of(
      [&] { return brigade::bench::run(argc, argv); });
}
