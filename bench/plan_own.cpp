// How far are the planner's predictions from this machine's own runs, after
// `brigade plan --calibrate --nproc 2`?
//
//   build/release/bench/plan_own [--machine machine.json] [--model NAME]
//                                [--measured FILE]
//
// Three models under nine layouts of two ranks of one thread each, by the
// program itself: eight steps, of which the first three are left out; or with
// --measured those of an earlier output of this program. Prints step time and
// peak memory of each, predicted and measured, and their errors against the
// targets.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/program_runs.h"
#include "brigade/base/units.h"
#include "brigade/planner/search.h"

namespace brigade::bench {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;

struct OwnModel {
  std::string name;
  json config;
  int64_t sequence_tokens;
  int64_t sequences;  // of a step
};

std::vector<OwnModel> own_models() {
  const auto decoder = [](int64_t hidden, int layers, int heads, int kv_heads) {
    return json{
        {"architectures", {"LlamaForCausalLM"}},
        {"vocab_size", 8192},
        {"hidden_size", hidden},
        {"intermediate_size", hidden * 8 / 3 / 32 * 32},
        {"num_hidden_layers", layers},
        {"num_attention_heads", heads},
        {"num_key_value_heads", kv_heads},
        {"max_position_embeddings", 1024},
        {"tie_word_embeddings", false}};
  };
  return {
      {"10m", decoder(288, 6, 6, 6), 256, 16},
      {"34m", decoder(512, 8, 8, 4), 256, 16},
      {"98m", decoder(768, 12, 12, 12), 512, 8}};
}

const char* const kLayouts[] = {
    "dp2",
    "dp2-mb2-full",
    "dp2-zero1",
    "tp2-mb2",
    "tp2-sp-mb4",
    "pp2-mb2-1f1b",
    "pp2-zero_bubble",
    "pp2-mb2-1f1b-full",
    "cp2-mb2"};

machine::Machine read_calibrated(const std::string& path) {
  if (!std::filesystem::exists(path))
    throw ConfigError(fmt::format(
        "[bench] {}: there is no such file; run `brigade plan --calibrate "
        "--nproc {}` first",
        path,
        kRanks));
  std::vector<std::string> problems;
  const machine::Machine machine = machine::parse_machine(
      json::parse(read_text_file(path)), path + ": ", problems);
  if (!problems.empty())
    throw ConfigError(problems);
  if (machine.devices_per_node != kRanks)
    throw ConfigError(fmt::format(
        "[bench] {} was measured with {} ranks; calibrate with --nproc {}",
        path,
        machine.devices_per_node,
        kRanks));
  return machine;
}

planner::Training training_of(
    const OwnModel& model,
    const machine::Machine& machine) {
  planner::Training training;
  std::vector<std::string> problems;
  training.shape = planner::shape_of(
      parse_decoder_config(model.config, "", problems), model.name);
  if (!problems.empty())
    throw ConfigError(problems);
  training.set_machine(machine);
  training.batch = {model.sequence_tokens, model.sequences};
  return training;
}

std::vector<std::string> overrides_of(
    const planner::Layout& layout,
    const planner::Batch& batch) {
  const auto set = [](const std::string& key, const auto& value) {
    return fmt::format("{}={}", key, value);
  };
  std::vector<std::string> overrides = {
      set("distributed.dp_size", layout.dims.dp),
      set("distributed.tp_size", layout.dims.tp),
      set("distributed.pp_size", layout.dims.pp),
      set("distributed.cp_size", layout.dims.cp),
      set("distributed.pp_engine", to_string(layout.schedule)),
      set("distributed.sequence_parallel",
          layout.tokens == TokenLayout::kSharded),
      set("training.micro_batch_size", layout.micro_batch),
      set("training.gradient_accumulation_steps",
          planner::micro_batches(layout, batch)),
      set("training.recompute", to_string(layout.recompute))};
  if (layout.zero_stage > 0)
    overrides.push_back(set("distributed.zero_stage", layout.zero_stage));
  return overrides;
}

struct Errors {
  std::vector<double> seconds;
  std::vector<double> memory;
};

double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const double at = part * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] +
         (at - static_cast<double>(low)) * (values[high] - values[low]);
}

// The measurement of the same model and layout in an earlier output.
Measured read_measured(
    const std::string& output,
    const OwnModel& model,
    const std::string& layout,
    const planner::Batch& batch) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string text;
    if (!(words >> name >> text) || name != model.name || text != layout)
      continue;
    double milliseconds = 0;
    double gigabytes = 0;
    words >> milliseconds;
    for (std::string word; words >> word && word != "%)";) {
    }
    words >> gigabytes;
    if (!words)
      break;
    return {
        .tokens_per_second =
            static_cast<double>(batch.sequences * batch.sequence_tokens) /
            milliseconds * 1e3,
        .memory_gb = gigabytes};
  }
  throw ConfigError(fmt::format(
      "[bench] --measured: no figures of {} {}", model.name, layout));
}

// `output`: an earlier one; empty: runs the program.
void compare(
    const OwnModel& model,
    const machine::Machine& machine,
    const ProgramRuns& runs,
    const std::string& output,
    Errors& errors) {
  const planner::Training training = training_of(model, machine);
  planner::StepEstimator estimator(training);
  runs.set_config(run_config(
      runs.folder(),
      model.config,
      {{"seq_length", model.sequence_tokens}, {"learning_rate", 1e-3}}));
  for (const char* text : kLayouts) {
    const planner::Layout layout = planner::parse_layout(text);
    if (const std::string key = planner::missing_in_train(layout);
        !key.empty()) {
      fmt::print("{:<5} {:<20} left out: no {}\n", model.name, text, key);
      continue;
    }
    std::vector<std::string> problems;
    planner::validate_layout(
        layout, training.shape, training.batch, kRanks, problems);
    if (!problems.empty())
      throw ConfigError(problems);
    const planner::StepEstimate estimate = estimator.estimate(layout);
    const Measured measured =
        output.empty()
            ? runs.train(kRanks, overrides_of(layout, training.batch))
            : read_measured(output, model, text, training.batch);
    const double seconds =
        static_cast<double>(
            training.batch.sequences * training.batch.sequence_tokens) /
        measured.tokens_per_second;
    const double memory_gb = planner::largest(estimate.memory).total() / 1e9;
    errors.seconds.push_back(std::abs(estimate.seconds / seconds - 1));
    errors.memory.push_back(std::abs(memory_gb / measured.memory_gb - 1));
    const planner::StepParts& parts = estimate.parts;
    fmt::print(
        "{:<5} {:<20} {:>8.1f} ms, predicted {:>8.1f} ({:+5.1f} %)  {:>6.3f} "
        "GB, predicted {:>6.3f} ({:+5.1f} %)  products {:.0f} attention {:.0f} "
        "elementwise {:.0f} again {:.0f} tp {:.0f} cp {:.0f} bubble {:.0f} "
        "reduction {:.0f} optimizer {:.0f} slowest {:.0f} ms\n",
        model.name,
        text,
        seconds * 1e3,
        estimate.seconds * 1e3,
        100 * (estimate.seconds / seconds - 1),
        measured.memory_gb,
        memory_gb,
        100 * (memory_gb / measured.memory_gb - 1),
        1e3 * parts.computation.products,
        1e3 * parts.computation.attention,
        1e3 * parts.computation.elementwise,
        1e3 * parts.computation.recompute,
        1e3 * parts.computation.tp,
        1e3 * parts.computation.cp,
        1e3 * parts.bubble,
        1e3 * parts.reduction,
        1e3 * parts.optimizer,
        1e3 * parts.slowest);
    std::fflush(stdout);
  }
}

void print_quantile(
    const char* name,
    const std::vector<double>& errors,
    double part,
    double target) {
  const double error = quantile(errors, part);
  fmt::print(
      "{:<30} {:>5.1f} % (target {:.0f} %: {})\n",
      name,
      100 * error,
      100 * target,
      error <= target ? "met" : "missed");
}

int run(
    const std::string& machine_file,
    const std::string& only,
    const std::string& measured) {
  const machine::Machine machine = read_calibrated(machine_file);
  const std::filesystem::path folder = make_temporary_folder("plan_own");
  const ProgramRuns runs(folder);
  Errors errors;
  for (const OwnModel& model : own_models()) {
    if (only.empty() || only == model.name)
      compare(
          model,
          machine,
          runs,
          measured.empty() ? "" : read_text_file(measured),
          errors);
  }
  std::filesystem::remove_all(folder);
  if (errors.seconds.empty())
    throw ConfigError(fmt::format(
        "[bench] --model {}: no such model; 10m, 34m and 98m are", only));
  fmt::print("\n{} runs\n", errors.seconds.size());
  print_quantile("step time, median error", errors.seconds, 0.5, 0.05);
  print_quantile("step time, 90th percentile", errors.seconds, 0.9, 0.10);
  print_quantile("peak memory, largest error", errors.memory, 1, 0.07);
  return 0;
}

}  // namespace
}  // namespace brigade::bench

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    std::string machine = "machine.json";
    std::string model;
    std::string measured;
    for (int i = 1; i < argc; i += 2) {
      const std::string option = argv[i];
      if (i + 1 == argc || (option != "--machine" && option != "--model" &&
                            option != "--measured"))
        throw brigade::ConfigError(fmt::format(
            "[bench] '{}': plan_own [--machine FILE] [--model NAME] "
            "[--measured FILE]",
            option));
      (option == "--machine" ? machine
       : option == "--model" ? model
                             : measured) = argv[i + 1];
    }
    return brigade::bench::run(machine, model, measured);
  });
}
