// How fast is a training step of one process, how far is it from its products
// alone, and where does the time go?
//
//   build/release/bench_step [THREADS] [SHAPE] [bf16|fp32] [STEPS]
//
// The bound is the time of all matrix products of the step (attention's
// included, halved by causality) by oneDNN at their own shapes, measured in
// this run; the fused head may beat its part of it.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/step_shapes.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/model/llama.h"
#include "brigade/ops/adamw.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/product.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/swiglu.h"
#include "brigade/optim/adamw.h"

namespace brigade::bench {
namespace {

using torch::Tensor;

constexpr int kRuns = 5;

LlamaConfig config_of(const ModelShape& s) {
  LlamaConfig config;
  config.vocab_size = s.vocabulary;
  config.hidden_size = s.hidden;
  config.intermediate_size = s.ffn;
  config.num_hidden_layers = s.layers;
  config.num_attention_heads = s.heads;
  config.num_key_value_heads = s.key_heads;
  config.head_dim = s.head_dim();
  config.max_position_embeddings = s.sequence;
  config.tie_word_embeddings = s.tied;
  return config;
}

// Milliseconds of a linear's three products, n tokens.
double
products_ms(int64_t n, int64_t in, int64_t out, torch::ScalarType dtype) {
  const Tensor x = torch::ones({n, in}, dtype);
  const Tensor w = torch::ones({out, in}, dtype);
  const Tensor y = torch::ones({n, out}, dtype);
  const Tensor dx = torch::ones({n, in}, dtype);
  const Tensor dw = torch::ones({out, in});
  return median_ms(kRuns, [&] { ops::product(x, w.t(), y); }) +
         median_ms(kRuns, [&] { ops::product(y, w, dx); }) +
         median_ms(kRuns, [&] {
           ops::product(y.t(), x, dw, ops::Destination::kAdd);
         });
}

// Values like those of initial weights, without a slow generator.
Tensor spread(int64_t numel) {
  return (torch::arange(numel, torch::kFloat) * 0.7).sin() * 0.02;
}

struct Part {
  std::string name;
  double count;  // a micro-batch
  double ms;
};

// Every op alone, forward and backward, at the step's shapes.
std::vector<Part> parts_of(const ModelShape& s, torch::ScalarType dtype) {
  const int64_t n = s.tokens();
  const auto leaf = [&](at::IntArrayRef sizes) {
    return (spread(c10::multiply_integers(sizes)) * 20)
        .view(sizes)
        .to(dtype)
        .requires_grad_(true);
  };
  const auto timed = [](const std::function<Tensor()>& op) {
    return median_ms(kRuns, [&] {
      const Tensor out = op();
      out.backward(torch::ones_like(out));
    });
  };
  const Tensor x = leaf({n, s.hidden});
  const Tensor residual = leaf({n, s.hidden});
  const Tensor norm = leaf({s.hidden});
  const Tensor gate_up = leaf({n, 2 * s.ffn});
  const auto heads = [&](int64_t count) {
    return leaf({s.micro_batch, s.sequence, count, s.head_dim()});
  };
  const Tensor q = heads(s.heads);
  const Tensor k = heads(s.key_heads);
  const Tensor v = heads(s.key_heads);
  ops::AttentionOptions rotary;
  rotary.query_rotary = ops::make_rotary_table(
      torch::arange(s.sequence, torch::kLong), s.head_dim(), 10000.0);
  Tensor head = leaf({s.vocabulary, s.hidden});
  head.mutable_grad() = torch::zeros({s.vocabulary, s.hidden});
  const Tensor targets =
      torch::randint(s.vocabulary, {n}, torch::dtype(torch::kLong));
  const auto layers = static_cast<double>(s.layers);
  const auto linear = [&](int64_t in, int64_t out) {
    return products_ms(n, in, out, dtype);
  };
  return {
      {"linear q/k/v", layers, linear(s.hidden, s.qkv_width())},
      {"linear o", layers, linear(s.hidden, s.hidden)},
      {"linear gate/up", layers, linear(s.hidden, 2 * s.ffn)},
      {"linear down", layers, linear(s.ffn, s.hidden)},
      {"attention", layers, timed([&] {
         return ops::attention(q, k, v, rotary).out;
       })},
      {"add_rms_norm", 2 * layers + 1, timed([&] {
         return ops::add_rms_norm(x, residual, norm, 1e-5).first;
       })},
      {"swiglu", layers, timed([&] { return ops::swiglu(gate_up); })},
      {"head and cross-entropy", 1, timed([&] {
         return ops::linear_cross_entropy(
             x,
             head,
             targets,
             {.weight_grad = ops::WeightGrad::kAccumulate,
              .known_gradient = 1.0});
       })}};
}

double bound_ms(
    const ModelShape& s,
    torch::ScalarType dtype,
    const std::vector<Part>& parts) {
  double ms = 0;
  double flops = 0;
  for (size_t i = 0; i < 4; ++i)
    ms += parts[i].count * parts[i].ms;
  const int64_t widths = s.hidden * (s.qkv_width() + s.hidden + 3 * s.ffn);
  flops = 6.0 * static_cast<double>(s.tokens() * s.layers * widths);
  // Attention's seven products, half of each, at the rate of the linears.
  const double attention =
      7.0 * static_cast<double>(s.tokens() * s.sequence * s.hidden * s.layers);
  ms += attention / (flops / ms);
  return ms + products_ms(s.tokens(), s.hidden, s.vocabulary, dtype);
}

struct Trainee {
  std::shared_ptr<Llama> model;
  std::unique_ptr<BucketedGradSync> sync;
  std::unique_ptr<AdamW> optimizer;
};

Trainee make(const ModelShape& s, torch::ScalarType dtype) {
  ModelContext context = single_rank_context(config_of(s));
  context.dtype = dtype;
  context.weight_grad = ops::WeightGrad::kAccumulate;
  Trainee trainee;
  trainee.model = std::make_shared<Llama>(
      std::make_shared<ModelContext>(context), whole_model(context.config));
  std::vector<NamedParam> params;
  for (auto& item : trainee.model->named_parameters()) {
    const torch::NoGradGuard no_grad;
    if (item.value().dim() == 1)
      item.value().fill_(1.0);
    else
      item.value().copy_(spread(item.value().numel()).view_as(item.value()));
    params.push_back({item.key(), item.value()});
  }
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.reduction = Reduction::kSum;
  options.order = BucketOrder::kReverse;
  trainee.sync = std::make_unique<BucketedGradSync>(
      params, make_self_communicator(), options);
  std::vector<AdamWGroup> groups;
  for (const GradSegment& segment : trainee.sync->segments())
    groups.push_back({"bucket", segment.weight, segment.main_grad, 0.1});
  trainee.optimizer =
      std::make_unique<AdamW>(std::move(groups), AdamWOptions{});
  return trainee;
}

int run(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 2);
  const ModelShape* shape = &kShapes[0];
  for (const ModelShape& candidate : kShapes) {
    if (argc > 2 && std::strcmp(argv[2], candidate.name) == 0)
      shape = &candidate;
  }
  const ModelShape& s = *shape;
  const bool narrow = argc <= 3 || std::strcmp(argv[3], "fp32") != 0;
  const int steps = argc > 4 ? std::atoi(argv[4]) : 5;
  const auto dtype = narrow ? torch::kBFloat16 : torch::kFloat;
  Trainee trainee = make(s, dtype);
  const auto ids = [&] {
    return torch::randint(
        s.vocabulary, {s.micro_batch, s.sequence}, torch::dtype(torch::kLong));
  };
  const MicroBatch batch{ids(), ids(), {}};
  const Tensor positions = torch::arange(s.sequence, torch::kLong);
  double forward_ms = 0;
  double backward_ms = 0;
  double optimizer_ms = 0;
  const auto lap = [](auto& since) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> passed = now - since;
    since = now;
    return passed.count();
  };
  double loss_value = 0;
  const double step_ms = median_ms(steps, [&] {
    forward_ms = backward_ms = 0;
    auto since = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < s.accumulation; ++i) {
      trainee.sync->set_accumulate_only(i + 1 < s.accumulation);
      const Tensor loss = trainee.model->forward(batch, {}, positions);
      forward_ms += lap(since);
      loss.backward();
      backward_ms += lap(since);
      loss_value = loss.item<double>() / static_cast<double>(s.tokens());
    }
    trainee.sync->finish();
    const double scale = 1.0 / static_cast<double>(s.tokens() * s.accumulation);
    trainee.optimizer->sum_of_squared_gradients();
    trainee.optimizer->step(1e-3, scale, ops::AfterRead::kZero);
    trainee.sync->reset();
    optimizer_ms = lap(since);
  });
  const std::vector<Part> parts = parts_of(s, dtype);
  const auto rounds = static_cast<double>(s.accumulation);
  const double bound = rounds * bound_ms(s, dtype, parts);
  const double tokens = static_cast<double>(s.tokens()) * rounds;
  fmt::print(
      "{} {}, {} threads: {:.0f} tokens/s, {:.1f} ms a step of {} tokens (loss "
      "{:.4f})\n  products alone: {:.1f} ms, {:.0f} tokens/s; the step reaches "
      "{:.2f} of it\n",
      s.name,
      narrow ? "bf16" : "fp32",
      at::get_num_threads(),
      tokens / step_ms * 1e3,
      step_ms,
      tokens,
      loss_value,
      bound,
      tokens / bound * 1e3,
      bound / step_ms);
  double rest = step_ms;
  const auto line = [&](const std::string& name, double ms) {
    rest -= ms;
    fmt::print(
        "  {:<26} {:>8.2f} ms {:>5.1f} %\n", name, ms, 100 * ms / step_ms);
  };
  for (const Part& part : parts)
    line(part.name, rounds * part.count * part.ms);
  line("optimizer and norm", optimizer_ms);
  line("other", rest);
  fmt::print(
      "  (last step: forward and head's gradient {:.1f} ms, backward {:.1f} "
      "ms)\n",
      forward_ms,
      backward_ms);
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::run(argc, argv);
}
