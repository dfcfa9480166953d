// Training over a slow link: two ranks on two hosts joined by a cable whose
// rate is limited (network namespaces, as root). Tokens per second and bytes
// sent by one rank per step for each way to reduce, and PyTorch's DDP on the
// same model in the same run; ratios count, not rates.
//
//   build/release/bench_links [ROUNDS [MEGABITS...]]      # default 1 1000 100
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/over_links.h"
#include "bench/run_ranks.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using bench::ProgramRuns;
using nlohmann::json;

constexpr int kTokens = 2 * 4 * 256;  // of a step, both ranks

json links_config(const fs::path& folder) {
  return bench::run_config(
      folder,
      {{"architectures", {"LlamaForCausalLM"}},
       {"vocab_size", 32000},
       {"hidden_size", 288},
       {"intermediate_size", 768},
       {"num_hidden_layers", 6},
       {"num_attention_heads", 6},
       {"num_key_value_heads", 6},
       {"max_position_embeddings", 256},
       {"tie_word_embeddings", false}},
      {{"seq_length", 256},
       {"micro_batch_size", 4},
       {"gradient_accumulation_steps", 1},
       {"grad_clip", 1.0}});
}

struct Way {
  std::string name;
  int steps;  // the first two are left out
  std::vector<std::string> overrides;
};

constexpr int kWarmupSteps = 2;
constexpr int kRoundSteps = 30;  // of low-communication training

std::vector<Way> ways() {
  const std::string wire = "distributed.grad_wire=";
  const std::string fp32 = "model.dtype=float32";
  const std::string local =
      fmt::format("distributed.local_steps={}", kRoundSteps);
  const std::string int8 = "distributed.outer_wire=int8";
  return {
      {"fp32", 6, {fp32}},
      {"bf16 wire", 6, {fp32, wire + "bf16"}},
      {"int8 wire", 6, {fp32, wire + "int8"}},
      {"powersgd wire", 10, {fp32, wire + "powersgd"}},
      {"bf16 model and wire", 6, {wire + "bf16"}},
      {"local steps, int8", kWarmupSteps + kRoundSteps, {fp32, local, int8}},
      {"streaming, int8",
       kWarmupSteps + 2 * kRoundSteps,
       {fp32,
        local,
        int8,
        "distributed.outer_fragments=3",
        "distributed.outer_delay=9",
        "distributed.outer_alpha=0.5"}},
      {"no exchange", 10, {fp32, "distributed.local_steps=100000"}}};
}

struct LinkFigures {
  double tokens_per_second = 0;
  double sent_mb_per_step = 0;
};

// The rate over all steps after the warm-up: steps of low-communication
// training differ.
double rate_of(const fs::path& metrics) {
  std::ifstream file(metrics);
  double milliseconds = 0;
  int steps = 0;
  for (std::string line; std::getline(file, line);) {
    const json entry = json::parse(line);
    if (++steps > kWarmupSteps)
      milliseconds += entry.at("step_ms").get<double>();
  }
  if (steps <= kWarmupSteps)
    throw DataError("[bench] the run logged no step");
  return 1e3 * kTokens * (steps - kWarmupSteps) / milliseconds;
}

LinkFigures
measure(const ProgramRuns& runs, const SlowLink& link, const Way& way) {
  std::vector<std::string> overrides = way.overrides;
  overrides.push_back(fmt::format("training.total_train_steps={}", way.steps));
  const int64_t before = link.sent_bytes(0);
  runs.train(2, overrides);
  return {
      rate_of(runs.folder() / "run" / "metrics.jsonl"),
      static_cast<double>(link.sent_bytes(0) - before) / 1e6 / way.steps};
}

// PyTorch's DDP in float32, from Debian's python3-torch.
LinkFigures measure_ddp(const fs::path& folder, const SlowLink& link) {
  constexpr int kSteps = 5;
  const fs::path store = folder / "store";
  const fs::path out = folder / "ddp";
  fs::remove(store);
  SupervisorOptions options;
  options.nproc = 2;
  options.threads_per_rank = 1;
  options.command = link.on_host_of_rank(
      {"/usr/bin/python3",
       BRIGADE_SOURCE_DIR "/bench/peers/pytorch_step.py",
       "--ranks",
       "2",
       "--steps",
       std::to_string(kSteps),
       "--accumulation",
       "1",
       "--store",
       store.string()});
  options.environment = {{"GLOO_SOCKET_IFNAME", SlowLink::kInterface}};
  options.unprefixed_rank = 0;
  const int64_t before = link.sent_bytes(0);
  bench::run_ranks(std::move(options), "DDP", out);
  const std::string key = "tokens_per_second=";
  std::ifstream file(out);
  for (std::string line; std::getline(file, line);) {
    if (const size_t at = line.find(key); at != std::string::npos)
      return {
          std::stod(line.substr(at + key.size())),
          static_cast<double>(link.sent_bytes(0) - before) / 1e6 /
              (kSteps + 1)};
  }
  throw DataError("[bench] DDP printed no rate");
}

void compare_over(
    const ProgramRuns& runs,
    const SlowLink& link,
    int megabits,
    int rounds) {
  std::vector<double> ddp_rates;
  std::vector<std::vector<double>> rates(ways().size());
  std::vector<double> sent(ways().size());
  double ddp_sent = 0;
  for (int round = 0; round < rounds; ++round) {
    const LinkFigures ddp = measure_ddp(runs.folder(), link);
    ddp_rates.push_back(ddp.tokens_per_second);
    ddp_sent = ddp.sent_mb_per_step;
    for (size_t i = 0; i < ways().size(); ++i) {
      const LinkFigures figures = measure(runs, link, ways()[i]);
      rates[i].push_back(figures.tokens_per_second);
      sent[i] = figures.sent_mb_per_step;
    }
  }
  const double ddp = median(ddp_rates);
  const double alone = median(rates.back());
  fmt::print(
      "{} Mbit/s\n{:<22} {:>9} {:>8} {:>12} {:>13}\n{:<22} {:>9.0f} {:>8.2f} "
      "{:>12.2f} {:>13.2f}\n",
      megabits,
      "",
      "tokens/s",
      "x DDP",
      "x unlinked",
      "MB sent/step",
      "DDP fp32",
      ddp,
      1.0,
      ddp / alone,
      ddp_sent);
  for (size_t i = 0; i < ways().size(); ++i)
    fmt::print(
        "{:<22} {:>9.0f} {:>8.2f} {:>12.2f} {:>13.2f}\n",
        ways()[i].name,
        median(rates[i]),
        median(rates[i]) / ddp,
        median(rates[i]) / alone,
        sent[i]);
  std::fflush(stdout);
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    return brigade::bench::compare_over_links(
        "training",
        {argv + 1, argv + argc},
        1,
        brigade::links_config,
        brigade::compare_over);
  });
}
