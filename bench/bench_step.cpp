// How fast is a training step, how far is it from its matrix products alone,
// and where does the time go? No arguments: the cases of kCases, each by ranks
// of its own. Or one case:
//
//   build/release/bench_step [ranks=2] [threads=1] [shape=stories15m]
//                            [dtype=bf16|fp32] [wire=fp32|bf16] [steps=7]
//   BRIGADE_BENCH_TARGET=AVX2 DNNL_MAX_CPU_ISA=AVX2       # as if that were all
//
// The bound is the time of all matrix products of the step (attention's
// included, halved by causality) by oneDNN at their own shapes, their operands
// in cache, measured in this run by all ranks at once, between the steps and
// after them; the linears and the fused head may beat their parts of it. Beside
// it the time of the same products at the rate of the cores' multiply-adds in
// float32, measured likewise: a bound that is nobody's library, which
// processors with products in bf16 beat.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/fma/fma_rate.h"
#include "bench/run_ranks.h"
#include "bench/step_parts.h"
#include "bench/step_shapes.h"
#include "brigade/base/error.h"
#include "brigade/comm/world.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/metrics/clock.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/ops/adamw.h"
#include "brigade/optim/adamw.h"
#include "brigade/train/peak_rate.h"

namespace brigade::bench {
namespace {

struct Case {
  int ranks = 2;
  int threads = 1;
  std::string shape = "stories15m";
  std::string dtype = "bf16";
  std::string wire = "fp32";
  int steps = 7;
};

const Case kCases[] = {
    {},
    {.ranks = 1, .threads = 2},
    {.dtype = "fp32"},
    {.ranks = 1, .threads = 2, .shape = "smollm_135m", .steps = 5},
    {.ranks = 1, .threads = 2, .shape = "stories15m_4k", .steps = 5}};

DecoderConfig config_of(const ModelShape& s) {
  DecoderConfig config;
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

struct Trainee {
  std::shared_ptr<DecoderModel> model;
  std::unique_ptr<BucketedGradSync> sync;
  std::unique_ptr<AdamW> optimizer;
};

Trainee make(
    const ModelShape& s,
    torch::ScalarType dtype,
    const CommunicatorPtr& group,
    bool bf16_on_the_wire) {
  const DecoderConfig config = config_of(s);
  ModelContext context = single_rank_context(config);
  context.dtype = dtype;
  context.weight_grad = ops::WeightGrad::kAccumulate;
  Trainee trainee;
  trainee.model = std::make_shared<DecoderModel>(
      std::make_shared<ModelContext>(context), whole_model(config));
  std::vector<Param> params;
  auto weights = trainee.model->named_parameters();
  for (const ParameterRow& row : list_parameters(config)) {
    const torch::NoGradGuard no_grad;
    torch::Tensor& weight = weights[row.name];
    if (weight.dim() == 1)
      weight.fill_(1.0);
    else
      weight.copy_(spread(weight.numel()).view_as(weight));
    params.push_back(
        {row.name, weight, is_row_sparse(row, whole_model(config))});
  }
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.reduction = Reduction::kSum;
  options.order = BucketOrder::kReverse;
  if (bf16_on_the_wire)
    options.hook = bf16_hook();
  trainee.sync = std::make_unique<BucketedGradSync>(params, group, options);
  std::vector<OptimizerGroup> groups;
  for (const FlatSegment& segment : trainee.sync->segments())
    groups.push_back({"bucket", segment.weight, segment.main_grad, 0.1});
  trainee.optimizer =
      std::make_unique<AdamW>(std::move(groups), AdamWOptions{});
  return trainee;
}

double peak_memory_gb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;  // from KiB
}

// Pages that the process has been given so far, 4 KiB each or a huge one.
int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

const ModelShape& shape_named(const std::string& name) {
  for (const ModelShape& shape : kShapes) {
    if (name == shape.name)
      return shape;
  }
  throw ConfigError(fmt::format("[bench] unknown shape '{}'", name));
}

struct Laps {
  double forward_ms = 0;
  double backward_ms = 0;
  double wait_ms = 0;
  double optimizer_ms = 0;
};

double lap(int64_t& since_ns) {
  const int64_t now = steady_now_ns();
  const double ms = static_cast<double>(now - since_ns) / 1e6;
  since_ns = now;
  return ms;
}

// One step; the exposed communication is its wait.
Laps step(
    Trainee& trainee,
    const ModelShape& s,
    const MicroBatch& batch,
    const Tensor& positions,
    double global_tokens) {
  Laps laps;
  int64_t since = steady_now_ns();
  for (int64_t i = 0; i < s.accumulation; ++i) {
    trainee.sync->set_accumulate_only(i + 1 < s.accumulation);
    const Tensor loss = trainee.model->forward(batch, {}, positions);
    laps.forward_ms += lap(since);
    loss.backward();
    laps.backward_ms += lap(since);
  }
  trainee.sync->finish();
  laps.wait_ms = lap(since);
  static_cast<void>(trainee.optimizer->squared_gradients().item<double>());
  trainee.optimizer->step(1e-3, 1.0 / global_tokens, ops::AfterRead::kZero);
  trainee.sync->reset();
  laps.optimizer_ms = lap(since);
  return laps;
}

// What rank 0 prints of its steps.
struct Measured {
  std::vector<Part> parts;
  Laps laps;          // of the last step
  double tokens = 0;  // of a step, of all ranks
  double step_ms = 0;
  double bound_ms = 0;    // the products alone
  double fma_gflops = 0;  // of a thread
  double fma_ms = 0;      // the products at that rate
  double communication_ms = 0;
  double peak_flops = 0;
  double memory_gb = 0;
  double start_s = 0;
  int64_t page_faults = 0;
};

void print_parts(const ModelShape& s, const Measured& m) {
  double rest = m.step_ms;
  const auto line = [&](const std::string& name, double ms) {
    rest -= ms;
    fmt::print(
        "  {:<26} {:>8.2f} ms {:>5.1f} %\n", name, ms, 100 * ms / m.step_ms);
  };
  for (const Part& part : m.parts)
    line(part.name, static_cast<double>(s.accumulation) * part.count * part.ms);
  line("optimizer and norm", m.laps.optimizer_ms);
  line("communication exposed", m.laps.wait_ms);
  line("other", rest);
  fmt::print(
      "  (last step: forward with the head's gradient {:.1f} ms, backward "
      "{:.1f} ms, communication under way {:.1f} ms)\n"
      "result tokens_per_second={:.0f} bound={:.3f} fma_bound={:.3f} "
      "peak_memory_gb={:.3f} start_s={:.2f}\n",
      m.laps.forward_ms,
      m.laps.backward_ms,
      m.communication_ms,
      m.tokens / m.step_ms * 1e3,
      m.bound_ms / m.step_ms,
      m.fma_ms / m.step_ms,
      m.memory_gb,
      m.start_s);
}

void print_step(const Case& c, const ModelShape& s, const Measured& m) {
  const int64_t params =
      (s.tied ? 1 : 2) * s.vocabulary * s.hidden +
      s.layers *
          (s.hidden * (s.qkv_width() + s.hidden + 3 * s.ffn) + 2 * s.hidden) +
      s.hidden;
  const double flops =
      m.tokens / c.ranks *
      flops_per_token(
          static_cast<double>(params), s.layers, s.hidden, s.sequence);
  fmt::print(
      "{} {}, {} rank(s) of {} thread(s), {} on the wire: {:.0f} tokens/s, "
      "{:.1f} ms per step of {} tokens\n"
      "  products alone {:.1f} ms: the step reaches {:.2f} of that bound; MFU "
      "{:.2f} of {:.0f} GFLOP/s per rank\n"
      "  at {:.0f} GFLOP/s of float32 multiply-adds per thread {:.1f} ms: "
      "{:.2f} "
      "of that bound\n"
      "  peak memory of a rank {:.2f} GB, {} new pages in the last {} steps, "
      "start to first step {:.1f} s\n",
      s.name,
      c.dtype,
      c.ranks,
      c.threads,
      c.wire,
      m.tokens / m.step_ms * 1e3,
      m.step_ms,
      m.tokens,
      m.bound_ms,
      m.bound_ms / m.step_ms,
      flops / (m.step_ms / 1e3) / m.peak_flops,
      m.peak_flops / 1e9,
      m.fma_gflops,
      m.fma_ms,
      m.fma_ms / m.step_ms,
      m.memory_gb,
      m.page_faults,
      c.steps / 2,
      m.start_s);
}

void run_rank(const Case& c, int64_t start_ns) {
  at::set_num_threads(c.threads);
  const ModelShape& s = shape_named(c.shape);
  const World world = init_from_environment();
  const CommunicatorPtr& group = world.data_parallel();
  const auto dtype = c.dtype == "fp32" ? torch::kFloat : torch::kBFloat16;
  Trainee trainee = make(s, dtype, group, c.wire == "bf16");
  const auto ids = [&] {
    return torch::randint(
        s.vocabulary, {s.micro_batch, s.sequence}, torch::dtype(torch::kLong));
  };
  const MicroBatch batch{ids(), ids(), {}};
  const Tensor positions = torch::arange(s.sequence, torch::kLong);
  const auto rounds = static_cast<double>(s.accumulation);
  const double tokens = static_cast<double>(s.tokens()) * rounds * c.ranks;
  ops::release_freed_memory();  // as the program does
  Laps laps = step(trainee, s, batch, positions, tokens);
  const double start_s = static_cast<double>(steady_now_ns() - start_ns) / 1e9;
  std::vector<double> step_times;
  const auto take_steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      int64_t since = steady_now_ns();
      laps = step(trainee, s, batch, positions, tokens);
      step_times.push_back(lap(since));
    }
  };
  std::vector<double> fma_rates;
  const auto products_alone = [&] {
    group->barrier();
    const double ms = rounds * bound_ms(s, dtype);
    group->barrier();
    fma_rates.push_back(fma_gflops());
    group->barrier();
    return ms;
  };
  // Both run in turn, so that other load on the machine affects both. The first
  // step of a turn fills the caches.
  step(trainee, s, batch, positions, tokens);
  take_steps((c.steps + 1) / 2);
  const double memory_gb = peak_memory_gb();
  const double bound_between = products_alone();
  step(trainee, s, batch, positions, tokens);
  const int64_t faults_before = page_faults();
  take_steps(c.steps / 2);
  const int64_t faults = page_faults() - faults_before;
  const double bound = (bound_between + products_alone()) / 2;
  const double fma_rate = *std::max_element(fma_rates.begin(), fma_rates.end());
  const Measured measured{
      .parts = parts_of(s, dtype),
      .laps = laps,
      .tokens = tokens,
      .step_ms = median(step_times),
      .bound_ms = bound,
      .fma_gflops = fma_rate,
      .fma_ms = rounds * product_flops(s) / (fma_rate * c.threads) / 1e6,
      .communication_ms =
          static_cast<double>(trainee.sync->report().communication_ns()) / 1e6,
      .peak_flops = peak_flops(dtype, 1, {}),
      .memory_gb = memory_gb,
      .start_s = start_s,
      .page_faults = faults};
  group->barrier();
  if (group->rank() != 0)
    return;
  print_step(c, s, measured);
  print_parts(s, measured);
}

// key=value words; names what it does not know.
Case parse(const std::vector<std::string>& words) {
  std::map<std::string, std::string> values;
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos)
      throw ConfigError(fmt::format("[bench] '{}' is not key=value", word));
    values[word.substr(0, equals)] = word.substr(equals + 1);
  }
  Case c;
  const auto number = [&](const char* key, int& target) {
    return std::pair(key, [key, &target](const std::string& text) {
      target = positive_number(key, text);
    });
  };
  const auto one_of = [&](const char* key,
                          std::string& target,
                          std::vector<std::string> choices) {
    return std::pair(key, [key, &target, choices](const std::string& text) {
      if (std::find(choices.begin(), choices.end(), text) == choices.end())
        throw ConfigError(fmt::format(
            "[bench] {} = '{}': expected one of {}",
            key,
            text,
            fmt::join(choices, ", ")));
      target = text;
    });
  };
  std::vector<std::string> shapes;
  for (const ModelShape& shape : kShapes)
    shapes.emplace_back(shape.name);
  const std::map<std::string, std::function<void(const std::string&)>> known = {
      number("ranks", c.ranks),
      number("threads", c.threads),
      number("steps", c.steps),
      one_of("shape", c.shape, shapes),
      one_of("dtype", c.dtype, {"fp32", "bf16"}),
      one_of("wire", c.wire, {"fp32", "bf16"})};
  for (const auto& [key, value] : values) {
    if (known.count(key) == 0)
      throw ConfigError(fmt::format("[bench] unknown key '{}'", key));
    known.at(key)(value);
  }
  return c;
}

void launch(const Case& c) {
  SupervisorOptions options;
  options.nproc = c.ranks;
  options.threads_per_rank = c.threads;
  options.prefixes_lines = false;
  options.command = {
      "/proc/self/exe",
      "--rank",
      std::to_string(steady_now_ns()),
      fmt::format("ranks={}", c.ranks),
      fmt::format("threads={}", c.threads),
      fmt::format("steps={}", c.steps),
      "shape=" + c.shape,
      "dtype=" + c.dtype,
      "wire=" + c.wire};
  run_ranks(options, "steps of shape " + c.shape);
}

void run(const std::vector<std::string>& words) {
  if (words.size() > 2 && words[0] == "--rank") {
    run_rank(parse({words.begin() + 2, words.end()}), std::stoll(words[1]));
  } else if (words.empty()) {
    for (const Case& c : kCases)
      launch(c);
  } else {
    launch(parse(words));
  }
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  try {
    brigade::bench::restrict_target();
    brigade::ops::set_up_tensor_memory();
    brigade::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
