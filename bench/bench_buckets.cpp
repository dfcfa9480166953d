// Whether `brigade tune-buckets` finds the bucket size that is fastest between
// two hosts: training over a cable whose rate is limited (network namespaces,
// as root), with the size that it chose and with each of a scan. Sizes take
// turns in each round, so that a machine that grows slower favours none;
// medians.
//
//   build/release/bench_buckets [ROUNDS [MEGABITS...]]    # default 3 1000 100
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "bench/arguments.h"
#include "bench/over_links.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using bench::ProgramRuns;

nlohmann::json buckets_config(const fs::path& folder) {
  auto config = bench::run_config(
      folder,
      {{"architectures", {"LlamaForCausalLM"}},
       {"vocab_size", 4096},
       {"hidden_size", 288},
       {"intermediate_size", 768},
       {"num_hidden_layers", 6},
       {"num_attention_heads", 6},
       {"num_key_value_heads", 6},
       {"max_position_embeddings", 256},
       {"tie_word_embeddings", false}},
      {{"seq_length", 256},
       {"micro_batch_size", 4},
       {"gradient_accumulation_steps", 2},
       {"grad_clip", 1.0},
       {"total_train_steps", 12}});
  config["model"]["dtype"] = "float32";
  return config;
}

// Capacities in MiB; the last holds all gradients of this model (31 MB).
const std::vector<double> kScan{0.25, 0.5, 1, 2, 4, 8, 16, 32};

void compare_over(
    const ProgramRuns& runs,
    const SlowLink& /*link*/,
    int megabits,
    int rounds) {
  std::vector<double> chosen;
  std::vector<std::vector<double>> rates(kScan.size());
  std::vector<double> tuned_rates;
  const auto rate_of = [&](double size) {
    return runs.train(2, {fmt::format("distributed.bucket_cap_mb={}", size)})
        .tokens_per_second;
  };
  for (int round = 0; round < rounds; ++round) {
    chosen.push_back(runs.tune_buckets(2, {}));
    tuned_rates.push_back(rate_of(chosen.back()));
    for (size_t i = 0; i < kScan.size(); ++i)
      rates[i].push_back(rate_of(kScan[i]));
  }
  fmt::print(
      "{} Mbit/s\n{:>14} {:>9}\n", megabits, "bucket_cap_mb", "tokens/s");
  double best = 0;
  for (size_t i = 0; i < kScan.size(); ++i) {
    best = std::max(best, median(rates[i]));
    fmt::print("{:>14} {:>9.0f}\n", kScan[i], median(rates[i]));
  }
  fmt::print(
      "tune-buckets chose {}: {:.0f} tokens/s, {:.3f} of the scan's best\n",
      fmt::join(chosen, ", "),
      median(tuned_rates),
      median(tuned_rates) / best);
  std::fflush(stdout);
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    return brigade::bench::compare_over_links(
        "bucket sizes",
        {argv + 1, argv + argc},
        3,
        brigade::buckets_config,
        brigade::compare_over);
  });
}
