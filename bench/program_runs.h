// Short runs of the program itself, for benchmarks of whole layouts.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/run_ranks.h"
#include "bench/slow_link.h"
#include "brigade/base/error.h"
#include "brigade/base/median.h"
#include "brigade/files/file.h"

namespace brigade::bench {

// Steps of a run, and how many of them are left out of its figures.
constexpr int kSteps = 8;
constexpr int kWarmup = 3;

// What of a run's config does not depend on its model: dataset, checkpoints and
// logs in `folder`, bf16, one seed.
inline nlohmann::json run_config(
    const std::filesystem::path& folder,
    const nlohmann::json& model,
    const nlohmann::json& training) {
  nlohmann::json config = {
      {"model", {{"dtype", "bfloat16"}, {"config", model}}},
      {"training", {{"seed", 1}, {"total_train_steps", kSteps}}},
      {"dataset", {{"name", (folder / "text").string()}}},
      {"checkpoint", {{"save_dir", (folder / "checkpoints").string()}}},
      {"logging", {{"run_dir", (folder / "run").string()}}}};
  config["training"].update(training);
  return config;
}

struct Measured {
  double tokens_per_second = 0;
  double loss_tokens_per_second = 0;  // 0: all tokens count
  double memory_gb = 0;               // the most of one replica's ranks
};

// A new, empty folder; the caller removes it.
inline std::filesystem::path make_temporary_folder(const std::string& name) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / (name + ".XXXXXX")).string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw StorageError("[bench] cannot make a folder " + pattern);
  return pattern;
}

class ProgramRuns {
 public:
  explicit ProgramRuns(std::filesystem::path folder)
      : folder_(std::move(folder)) {
    // Bytes of a text that repeats: speed and memory do not depend on it.
    std::ofstream text(folder_ / "text.txt");
    for (int line = 0; line < 40000; ++line)
      text << "line " << line << " of a text that says nothing else\n";
    text.close();
    prepare(folder_ / "text.txt", "text");
  }

  // A dataset of the file's bytes, under that name in folder().
  void prepare(const std::filesystem::path& file, const std::string& name)
      const {
    launch(
        1,
        {"prepare",
         "--input",
         file.string(),
         "--tokenizer",
         "bytes",
         "--out",
         (folder_ / name).string()});
  }

  const std::filesystem::path& folder() const { return folder_; }
  // The ranks to come are on the two hosts of `link`, which outlives them;
  // null: on this one.
  void set_link(const SlowLink* link) { link_ = link; }
  // Added to that of the ranks to come.
  void set_environment(
      std::vector<std::pair<std::string, std::string>> environment) {
    environment_ = std::move(environment);
  }
  void set_config(const nlohmann::json& config) const {
    std::ofstream(folder_ / "config.json") << config.dump(2);
  }

  Measured train(int ranks, const std::vector<std::string>& overrides) const {
    launch(ranks, train_arguments(overrides));
    return read_metrics();
  }

  // The time of each step of the last run.
  std::vector<double> step_ms() const {
    std::vector<double> ms;
    for (const nlohmann::json& step : read_steps())
      ms.push_back(step.at("step_ms").get<double>());
    return ms;
  }

  // What `brigade tune-buckets` writes as distributed.bucket_cap_mb.
  double tune_buckets(int ranks, const std::vector<std::string>& overrides)
      const {
    const std::filesystem::path out = folder_ / "tuned.json";
    std::filesystem::remove(out);
    std::vector<std::string> arguments = {
        "tune-buckets",
        "--config",
        (folder_ / "config.json").string(),
        "--out",
        out.string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    launch(ranks, arguments);
    std::ifstream file(out);
    return nlohmann::json::parse(file)
        .at("distributed")
        .at("bucket_cap_mb")
        .get<double>();
  }

  // The same as train() with ranks that mpirun starts.
  Measured train_under_mpirun(
      int ranks,
      const std::vector<std::string>& overrides) const {
    const std::string command = fmt::format(
        "OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo "
        "mpirun --oversubscribe --bind-to none {} -n {} {}/brigade '{}' "
        ">'{}' 2>&1",
        ::getuid() == 0 ? "--allow-run-as-root" : "",
        ranks,
        BRIGADE_BINARY_DIR,
        fmt::join(train_arguments(overrides), "' '"),
        (folder_ / "log").string());
    if (std::system(command.c_str()) != 0)
      throw Error(ExitCode::kUnexpected, "[bench] failed: " + command);
    return read_metrics();
  }

 private:
  std::vector<std::string> train_arguments(
      const std::vector<std::string>& overrides) const {
    std::vector<std::string> arguments = {
        "train", "--overwrite", "--config", (folder_ / "config.json").string()};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return arguments;
  }

  std::vector<nlohmann::json> read_steps() const {
    std::ifstream metrics(folder_ / "run" / "metrics.jsonl");
    std::vector<nlohmann::json> steps;
    for (std::string line; std::getline(metrics, line);) {
      nlohmann::json entry = nlohmann::json::parse(line);
      if (entry.contains("tokens_per_second"))
        steps.push_back(std::move(entry));
    }
    return steps;
  }

  Measured read_metrics() const {
    std::vector<double> rates;
    std::vector<double> loss_rates;
    Measured measured;
    int step = 0;
    for (const nlohmann::json& entry : read_steps()) {
      if (step++ >= kWarmup) {
        rates.push_back(entry["tokens_per_second"].get<double>());
        loss_rates.push_back(
            entry.value("loss_tokens", 0.0) / entry["step_ms"].get<double>() *
            1e3);
      }
      measured.memory_gb = entry["memory_gb"].get<double>();
    }
    if (rates.empty())
      throw DataError("[bench] the run logged no step");
    measured.tokens_per_second = median(rates);
    measured.loss_tokens_per_second = median(loss_rates);
    return measured;
  }

  void launch(int ranks, const std::vector<std::string>& arguments) const {
    SupervisorOptions options;
    options.nproc = ranks;
    options.threads_per_rank = 1;
    options.command = {BRIGADE_BINARY_DIR "/brigade"};
    options.command.insert(
        options.command.end(), arguments.begin(), arguments.end());
    options.environment = {
        {"GLOO_SOCKET_IFNAME", link_ ? SlowLink::kInterface : "lo"},
        {"OPENBLAS_NUM_THREADS", "1"}};
    options.environment.insert(
        options.environment.end(), environment_.begin(), environment_.end());
    if (link_ != nullptr)
      options.command = link_->on_host_of_rank(options.command);
    run_ranks(
        std::move(options),
        fmt::format("{}", fmt::join(arguments, " ")),
        folder_ / "log");
  }

  std::filesystem::path folder_;
  const SlowLink* link_ = nullptr;
  std::vector<std::pair<std::string, std::string>> environment_;
};

}  // namespace brigade::bench
