// What each axis costs in speed, and saves in memory, on two ranks of one
// thread: the same model, the same 8,192 tokens per step, one axis after the
// other, by the program itself. Ratios within one run.
//
//   build/release/bench_layouts [ROUNDS]      # default 3
//   build/release/bench_layouts mpi [ROUNDS]  # Gloo and MPI, both by mpirun
//   build/release/bench_layouts experts [ROUNDS]
//
// The last one: experts over 2 ranks of data parallel's 4, and the memory that
// this saves.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/arguments.h"
#include "bench/program_runs.h"

namespace brigade {
namespace {

using nlohmann::json;

using bench::Measured;
using bench::ProgramRuns;

json stories15m(const std::filesystem::path& folder) {
  return bench::run_config(
      folder,
      {{"architectures", {"LlamaForCausalLM"}},
       {"vocab_size", 32000},
       {"hidden_size", 288},
       {"intermediate_size", 768},
       {"num_hidden_layers", 6},
       {"num_attention_heads", 6},
       {"num_key_value_heads", 6},
       {"max_position_embeddings", 4096},
       {"tie_word_embeddings", false}},
      {{"seq_length", 256},
       {"micro_batch_size", 4},
       {"gradient_accumulation_steps", 4},
       {"learning_rate", 1e-3}});
}

// 50 million parameters, 42 of them of experts.
constexpr int64_t kExpertWidth = 384;
constexpr int64_t kExperts = 16;
constexpr int64_t kExpertParameters = 6 * kExperts * kExpertWidth * 288 * 3;

json with_experts(json config) {
  config["model"]["config"].update(
      {{"architectures", {"Qwen3MoeForCausalLM"}},
       {"model_type", "qwen3_moe"},
       {"head_dim", 48},
       {"vocab_size", 4096},
       {"num_experts", kExperts},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", kExpertWidth},
       {"norm_topk_prob", true}});
  config["training"].update({{"gradient_accumulation_steps", 2}});
  return config;
}

struct Axis {
  std::string name;
  double target;  // of data parallelism's tokens/s
  std::vector<std::string> overrides;
};

const std::string kDp = "distributed.dp_size=";
const std::string kTp = "distributed.tp_size=";
const std::string kPp = "distributed.pp_size=";
const std::string kCp = "distributed.cp_size=";
const std::string kAccumulate = "training.gradient_accumulation_steps=";

std::vector<Axis> all_axes() {
  return {
      {"dp=2", 1.0, {kDp + "2", kAccumulate + "4"}},
      {"tp=2", 0.75, {kDp + "1", kTp + "2", kAccumulate + "8"}},
      {"tp=2, sequence parallel",
       0.75,
       {kDp + "1",
        kTp + "2",
        kAccumulate + "8",
        "distributed.sequence_parallel=true"}},
      {"pp=2, 1F1B, 8 micro-batches",
       0.80,
       {kDp + "1", kPp + "2", kAccumulate + "8", "distributed.pp_engine=1f1b"}},
      {"cp=2", 0.85, {kDp + "1", kCp + "2", kAccumulate + "8"}}};
}

// Backends in turns: ratios within one run.
void compare_backends(ProgramRuns& bench, int rounds) {
  const auto axes = all_axes();
  std::map<std::string, std::map<std::string, std::vector<double>>> rates;
  for (int round = 0; round < rounds; ++round) {
    for (const Axis& axis : axes) {
      for (const std::string backend : {"gloo", "mpi"}) {
        std::vector<std::string> overrides = axis.overrides;
        overrides.push_back("distributed.backend=" + backend);
        rates[axis.name][backend].push_back(
            bench.train_under_mpirun(2, overrides).tokens_per_second);
      }
    }
  }
  const double data_parallel = median(rates[axes[0].name]["mpi"]);
  for (const Axis& axis : axes) {
    const double gloo = median(rates[axis.name]["gloo"]);
    const double mpi = median(rates[axis.name]["mpi"]);
    fmt::print(
        "{:<30} gloo {:>6.0f} tokens/s, mpi {:>6.0f}: {:.2f}x; mpi {:.2f}x of "
        "its dp=2\n",
        axis.name,
        gloo,
        mpi,
        mpi / gloo,
        mpi / data_parallel);
  }
}

void compare_speed(ProgramRuns& bench, int rounds) {
  const auto axes = all_axes();
  std::map<std::string, std::vector<double>> rates;
  std::map<std::string, double> memory;
  for (int round = 0; round < rounds; ++round) {
    for (const Axis& axis : axes) {
      const Measured measured = bench.train(2, axis.overrides);
      rates[axis.name].push_back(measured.tokens_per_second);
      memory[axis.name] = measured.memory_gb;
    }
  }
  const double data_parallel = median(rates[axes[0].name]);
  for (const Axis& axis : axes) {
    const double rate = median(rates[axis.name]);
    const double ratio = rate / data_parallel;
    fmt::print(
        "{:<30} {:>7.0f} tokens/s {:>6.2f} GB  {:.2f}x of dp=2 (target "
        "{:.2f}x: {})\n",
        axis.name,
        rate,
        memory[axis.name],
        ratio,
        axis.target,
        ratio >= axis.target ? "met" : "missed");
  }
}

// The memory of a run beyond that of a run with hardly any tokens.
double activations_gb(
    ProgramRuns& bench,
    int ranks,
    const std::vector<std::string>& layout,
    const std::string& sequence,
    const std::string& accumulation) {
  auto with = [&](const std::string& tokens, const std::string& rounds) {
    std::vector<std::string> overrides = layout;
    overrides.insert(
        overrides.end(),
        {"training.seq_length=" + tokens,
         "training.total_train_steps=4",
         kAccumulate + rounds});
    return bench.train(ranks, overrides).memory_gb;
  };
  return with(sequence, accumulation) - with("32", "2");
}

void compare_memory(ProgramRuns& bench) {
  const std::vector<std::string> one = {
      kDp + "1", "training.micro_batch_size=1"};
  std::vector<std::string> two = one;
  two.push_back(kCp + "2");
  const double whole = activations_gb(bench, 1, one, "4096", "1");
  const double half = activations_gb(bench, 2, two, "4096", "1");
  fmt::print(
      "activations at 4,096 tokens: cp=2 {:.2f} GB, cp=1 {:.2f} GB, {:.2f}x "
      "(target 0.60x: {})\n",
      half,
      whole,
      half / whole,
      half <= 0.6 * whole ? "met" : "missed");
  // What norms and residuals keep is divided by tp; the rest is either way.
  const std::vector<std::string> cut = {
      kDp + "1", kTp + "2", "training.micro_batch_size=1"};
  std::vector<std::string> by_tokens = cut;
  by_tokens.push_back("distributed.sequence_parallel=true");
  const double replicated = activations_gb(bench, 2, cut, "4096", "1");
  const double sharded = activations_gb(bench, 2, by_tokens, "4096", "1");
  fmt::print(
      "activations at 4,096 tokens: tp=2 {:.2f} GB, with sequence parallel "
      "{:.2f} GB, {:.2f}x\n",
      replicated,
      sharded,
      sharded / replicated);
  // How much more 16 micro-batches need than 4, which fill both stages.
  std::map<std::string, double> growth_gb;
  for (const std::string engine : {"1f1b", "afab"}) {
    // Large enough to rise above what starting up has left behind.
    const auto memory_gb = [&](const std::string& micro_batches) {
      return bench
          .train(
              2,
              {kDp + "1",
               kPp + "2",
               "distributed.pp_engine=" + engine,
               "training.micro_batch_size=16",
               "training.total_train_steps=4",
               kAccumulate + micro_batches})
          .memory_gb;
    };
    growth_gb[engine] = memory_gb("16") - memory_gb("4");
  }
  const double ratio = growth_gb["1f1b"] / growth_gb["afab"];
  fmt::print(
      "from 4 to 16 micro-batches, pp=2: 1f1b {:+.2f} GB, afab {:+.2f} GB, "
      "{:.2f}x (target 0.20x: {})\n",
      growth_gb["1f1b"],
      growth_gb["afab"],
      ratio,
      ratio <= 0.2 ? "met" : "missed");
}

// Backends and layouts in turns: ratios within one run.
void compare_experts(ProgramRuns& bench, int rounds) {
  constexpr int kRanks = 4;
  const std::vector<std::string> backends{"gloo", "mpi"};
  const std::vector<std::string> sizes{"1", "2"};
  std::map<std::string, std::vector<double>> rates;
  std::map<std::string, double> memory;
  for (int round = 0; round < rounds; ++round) {
    for (const std::string& backend : backends) {
      for (const std::string& ep : sizes) {
        const Measured measured = bench.train_under_mpirun(
            kRanks,
            {kDp + "4",
             "distributed.ep_size=" + ep,
             "distributed.backend=" + backend});
        rates[backend + ep].push_back(measured.tokens_per_second);
        memory[ep] = measured.memory_gb;
      }
    }
  }
  for (const std::string& backend : backends) {
    const double alone = median(rates[backend + "1"]);
    const double divided = median(rates[backend + "2"]);
    const double target = backend == "gloo" ? 0.85 : 0.9;
    fmt::print(
        "{:<5} dp=4 {:>6.0f} tokens/s, dp=4 ep=2 {:>6.0f}: {:.2f}x (target "
        "{:.2f}x: {})\n",
        backend,
        alone,
        divided,
        divided / alone,
        target,
        divided >= target * alone ? "met" : "missed");
  }
  // Weight, float32 gradient, two moments and the lower half of the master.
  constexpr double kBytes = 2 + 4 + 8 + 2;
  const double saved_gb = kExpertParameters / 2.0 * kBytes / 1e9;
  fmt::print(
      "memory per rank: dp=4 {:.3f} GB, dp=4 ep=2 {:.3f}: {:.3f} less; half "
      "of the experts' state is {:.3f}\n",
      memory["1"],
      memory["2"],
      memory["1"] - memory["2"],
      saved_gb);
}

enum class Question { kLayouts, kBackends, kExperts };

int run(Question question, int rounds) {
  const std::filesystem::path folder =
      bench::make_temporary_folder("bench_layouts");
  ProgramRuns bench(folder);
  json config = stories15m(folder);
  switch (question) {
    case Question::kExperts:
      bench.set_config(with_experts(std::move(config)));
      fmt::print("4 ranks of 1 thread, 16 experts, bf16\n");
      compare_experts(bench, rounds);
      break;
    case Question::kBackends:
    case Question::kLayouts:
      bench.set_config(config);
      fmt::print(
          "2 ranks of 1 thread, stories15m, bf16, 8,192 tokens per step\n");
      if (question == Question::kBackends) {
        compare_backends(bench, rounds);
      } else {
        compare_speed(bench, rounds);
        compare_memory(bench);
      }
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    using brigade::Question;
    const std::string what = argc > 1 ? argv[1] : "";
    Question question = Question::kLayouts;
    if (what == "mpi")
      question = Question::kBackends;
    else if (what == "experts")
      question = Question::kExperts;
    const int rounds = question == Question::kLayouts ? 1 : 2;
    return brigade::run(
        question,
        argc > rounds ? brigade::bench::positive_number("ROUNDS", argv[rounds])
                      : 3);
  });
}
