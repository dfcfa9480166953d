// What it costs a step to be watched: the watchdog's start of the step, the
// flight recorder's entries, the search for slow ranks and for spikes.
//
// An A/B of whole steps would drown in a machine's noise long before 1 %. So
// each part is timed by itself, thousands of times, and counted: two ranks as
// threads train a small model, and their recording says how many operations a
// step has.
#pragma once

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bench/program_runs.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/flight_recorder.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/store.h"
#include "brigade/config/train_config.h"
#include "brigade/flight/recording.h"
#include "brigade/launch/rank_report.h"
#include "brigade/metrics/clock.h"
#include "brigade/metrics/loss_spikes.h"
#include "brigade/train/step_watchdog.h"
#include "brigade/train/stragglers.h"
#include "brigade/train/trainer.h"

namespace brigade::bench {

constexpr int kWatchedRanks = 2;
constexpr int kWatchedSteps = 12;

inline double microseconds_per_call(
    int calls,
    const std::function<void()>& work) {
  const int64_t begin_ns = steady_now_ns();
  for (int i = 0; i < calls; ++i)
    work();
  return static_cast<double>(steady_now_ns() - begin_ns) / 1e3 / calls;
}

// Runs the ranks as threads that meet in one store.
inline void run_watched_ranks(
    const std::function<void(int rank, const StorePtr& store)>& part) {
  const StorePtr store = make_in_process_store(std::chrono::seconds(60));
  std::vector<std::exception_ptr> failures(kWatchedRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWatchedRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        part(rank, store);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks)
    rank.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure)
      std::rethrow_exception(failure);
  }
}

struct WatchedStep {
  double ms = 0;          // the median
  double operations = 0;  // that the recorder saw of a rank, per step
};

// A model of 7 million parameters on 2 ranks.
inline WatchedStep train_watched(const std::filesystem::path& folder) {
  const ProgramRuns runs(folder);
  nlohmann::json config = run_config(
      folder,
      {{"architectures", {"LlamaForCausalLM"}},
       {"model_type", "llama"},
       {"vocab_size", 259},
       {"hidden_size", 288},
       {"intermediate_size", 768},
       {"num_hidden_layers", 6},
       {"num_attention_heads", 6},
       {"num_key_value_heads", 6},
       {"max_position_embeddings", 256},
       {"rms_norm_eps", 1e-5},
       {"tie_word_embeddings", true}},
      {{"seq_length", 256}, {"micro_batch_size", 4}});
  config["training"]["total_train_steps"] = kWatchedSteps;
  config["distributed"] = {{"dp_size", kWatchedRanks}, {"use_cpu", true}};
  runs.set_config(config);
  TrainConfig loaded = load_train_config({.path = folder / "config.json",
                                          .overrides = {},
                                          .world_size = kWatchedRanks,
                                          .find_model = {}})
                           .config;
  loaded.run.overwrite = true;
  class Steps : public RunObserver {
   public:
    void on_step(const StepMetrics& metrics) override {
      ms.push_back(metrics.step_ms);
    }
    std::vector<double> ms;
  };
  Steps steps;
  run_watched_ranks([&](int rank, const StorePtr& store) {
    LaunchEnvironment environment;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = kWatchedRanks;
    TrainingOptions options;
    options.cache_dir = folder / "cache";
    options.store = store;
    options.observer = &steps;
    std::atomic<int64_t> step{0};
    // While the last steps run, so that whole steps lie behind them.
    options.watchdog.on_step = [&step](int64_t now, int64_t) { step = now; };
    options.watchdog.takes_recording_request = [&step] {
      return step >= 8 ? std::optional(FlightCause::kRequest) : std::nullopt;
    };
    run_training(loaded, environment, options);
  });
  const auto recording =
      read_flight_recordings(folder / "run" / "flight").front();
  WatchedStep watched;
  watched.ms = median({steps.ms.begin() + kWarmup, steps.ms.end()});
  for (const FlightOperation& operation : recording.operations)
    watched.operations += operation.step == 6 || operation.step == 7 ? 0.5 : 0;
  return watched;
}

// Microseconds of a rank's collective as the search for slow ranks has it.
inline double straggler_round_us() {
  double us = 0;
  run_watched_ranks([&](int rank, const StorePtr& store) {
    const auto world = make_gloo_communicator(store, rank, kWatchedRanks);
    const Agreement agreement(*world);
    StragglerDetector detector({0, 0});
    const double mine = microseconds_per_call(500, [&] {
      const auto busy = agreement.max(std::vector<int64_t>{1000, 1001});
      detector.add_window({busy.begin(), busy.end()});
    });
    if (rank == 0)
      us = mine;
  });
  return us;
}

inline void print_cost_of_watching(const std::filesystem::path& directory) {
  const std::filesystem::path folder = directory / "bench_watching";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const WatchedStep step = train_watched(folder);

  constexpr int kCalls = 100000;
  const auto recorder = std::make_shared<FlightRecorder>(0);
  const int group = recorder->add_group({"dp", {0, 1}, {"rank 0", "rank 1"}});
  const double operation_us = microseconds_per_call(kCalls, [&] {
    const int64_t id = recorder->begin(
        {.group = group, .kind = "all_reduce", .dtype = "Float", .numel = 1});
    recorder->launched(id, {});
    recorder->finished(id, 0);
  });
  RankReport report(folder / "report");
  StepWatchdog watch(
      recorder,
      folder / "flight",
      {.step_timeout = std::chrono::minutes(30),
       .on_step =
           [&](int64_t number, int64_t deadline_ns) {
             report.set_step(number);
             report.set_deadline(deadline_ns);
           },
       .takes_recording_request = {},
       .on_recording = {},
       .on_stall = [](const Stall&) {}});
  int64_t number = 0;
  const double begin_us =
      microseconds_per_call(kCalls, [&] { watch.begin_step(++number); });
  watch.end_steps();
  LossSpikes spikes(6);
  const double spike_us = microseconds_per_call(kCalls, [&] { spikes.add(1); });
  const double round_us = straggler_round_us() / StragglerDetector::kSteps;
  const double total_us =
      step.operations * operation_us + begin_us + spike_us + round_us;
  std::filesystem::remove_all(folder);
  fmt::print(
      "watching a step of {:.1f} ms with {:.0f} operations\n"
      "  recorder, per operation       {:8.3f} us\n"
      "  watchdog, per step            {:8.3f} us\n"
      "  loss spikes, per step         {:8.3f} us\n"
      "  slow ranks, per step          {:8.3f} us\n"
      "  together                      {:8.1f} us   {:.3f} % of the step (at "
      "most 1)\n",
      step.ms,
      step.operations,
      operation_us,
      begin_us,
      spike_us,
      round_us,
      total_us,
      total_us / step.ms / 10);
}

}  // namespace brigade::bench
