// What each axis costs in speed, and saves in memory, on two ranks of one
// thread: the same model, the same 8,192 tokens per step, one axis after the
// other, by the program itself. Ratios within one run.
//
//   build/release/bench_layouts [ROUNDS]      # default 3
//   build/release/bench_layouts mpi [ROUNDS]  # Gloo and MPI, both by mpirun
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/program_runs.h"

namespace brigade {
namespace {

using nlohmann::json;

using bench::Measured;
using bench::median;
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

enum class Question { kLayouts, kBackends };

int run(Question question, int rounds) {
  const std::filesystem::path folder =
      bench::make_temporary_folder("bench_layouts");
  ProgramRuns bench(folder);
  bench.set_config(stories15m(folder));
  fmt::print("2 ranks of 1 thread, stories15m, bf16, 8,192 tokens per step\n");
  if (question == Question::kBackends) {
    compare_backends(bench, rounds);
  } else {
    compare_speed(bench, rounds);
    compare_memory(bench);
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    using brigade::Question;
    const bool is_of_backends = argc > 1 && std::string(argv[1]) == "mpi";
    const int rounds = is_of_backends ? 2 : 1;
    return brigade::run(
        is_of_backends ? Question::kBackends : Question::kLayouts,
        argc > rounds ? brigade::bench::positive_number("ROUNDS", argv[rounds])
                      : 3);
  });
}
