#include "brigade/train/bucket_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/base/median.h"
#include "brigade/metrics/clock.h"
#include "brigade/run/run_options.h"
#include "brigade/train/start_world.h"
#include "brigade/train/train_step.h"

namespace brigade {
namespace {

// A round of each capacity after another, so that a machine that grows slower
// or faster meanwhile favours none.
constexpr int kRounds = 2;
constexpr int kWarmupSteps = 2;
constexpr int64_t kSmallestCapacity = 256 * KiB;
// Predictions are not exact to less than this share of the backward pass.
constexpr double kAlikeShareOfBackward = 0.01;

double to_mib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(MiB);
}

// The values of all ranks put together, element by element.
std::vector<double>
combine(const std::vector<double>& mine, Communicator& group, ReduceOp op) {
  auto values = torch::tensor(mine, torch::kDouble);
  group.all_reduce(values, op)->wait();
  const auto* data = values.data_ptr<double>();
  return {data, data + values.numel()};
}

// Measured times of the steps of one capacity.
struct CapacityTimes {
  std::vector<double> exposed_ms;
  std::vector<double> step_ms;
};

// What prediction needs of one stage of this rank.
struct StageProfile {
  std::vector<BucketParam> params;
  std::vector<int> order;
  BucketPlanOptions plan;
  std::vector<std::vector<double>> ready_ns;  // by parameter, one per step
  std::vector<double> backward_ns;            // one per step
};

BucketPlan plan_of(const StageProfile& profile, int64_t capacity_bytes) {
  BucketPlanOptions options = profile.plan;
  options.capacity_bytes = capacity_bytes;
  return plan_buckets(profile.params, profile.order, options);
}

class Tuner {
 public:
  Tuner(
      const TrainConfig& config,
      const LaunchEnvironment& environment,
      const BucketTunerOptions& options)
      : config_(config),
        options_(options),
        mesh_(start_world(
            config,
            environment,
            {.prepare =
                 [&] {
                   data_ = open_training_data(training_data_options(config));
                 },
             .datasets = data_names(config)})) {}

  BucketTuning run() {
    const int64_t configured = configured_bytes();
    tuning_.ranks = mesh_->replicas()->size();
    CapacityTimes ignored;
    run_steps(configured, options_.steps, ignored, &profiles_);
    predict();
    verify();
    return std::move(tuning_);
  }

 private:
  int64_t configured_bytes() const {
    return bucket_capacity_bytes(config_.distributed);
  }

  void measure_all_reduce(int64_t largest_bytes) {
    Communicator& group = *mesh_->replicas();
    constexpr int64_t kLargest = 64 * MiB;
    for (int64_t bytes = 16 * KiB;
         bytes <= std::clamp(largest_bytes, 1 * MiB, kLargest);
         bytes *= 4) {
      auto tensor = torch::zeros({bytes / 4}, torch::kFloat);
      const int repeats = bytes > 4 * MiB ? 5 : 11;
      std::vector<double> times_ns;
      for (int i = -kWarmupSteps; i < repeats; ++i) {
        group.barrier();
        const int64_t begin_ns = steady_now_ns();
        group.all_reduce(tensor)->wait();
        if (i >= 0)
          times_ns.push_back(static_cast<double>(steady_now_ns() - begin_ns));
      }
      // The rank that came last did not wait for the others.
      times_ns = combine(times_ns, group, ReduceOp::kMin);
      tuning_.samples.push_back({bytes, median(times_ns)});
    }
    tuning_.cost = fit_all_reduce_cost(tuning_.samples);
  }

  // Runs steps of a capacity; adds its times, and where given its profile.
  void run_steps(
      int64_t capacity_bytes,
      int steps,
      CapacityTimes& times,
      std::vector<StageProfile>* profiles) {
    config_.distributed.bucket_cap_mb = to_mib(capacity_bytes);
    TrainStep train_step(config_, *mesh_, data_);
    std::vector<double> exposed_ms;
    std::vector<double> step_ms;
    for (int step = 1; step <= kWarmupSteps + steps; ++step) {
      const StepResult result = train_step.run(step);
      if (step <= kWarmupSteps)
        continue;
      double exposed_ns = 0;
      for (size_t s = 0; s < train_step.stages().size(); ++s) {
        const SyncReport& report = train_step.stages()[s]->sync().report();
        exposed_ns += static_cast<double>(report.exposed_ns());
        if (!profiles)
          continue;
        profiles->resize(train_step.stages().size());
        StageProfile& profile = (*profiles)[s];
        profile.ready_ns.resize(report.ready_ns.size());
        for (size_t i = 0; i < report.ready_ns.size(); ++i) {
          profile.ready_ns[i].push_back(static_cast<double>(
              report.ready_ns[i] - report.backward_begin_ns));
        }
        profile.backward_ns.push_back(static_cast<double>(
            report.backward_end_ns - report.backward_begin_ns));
      }
      exposed_ms.push_back(exposed_ns / 1e6);
      step_ms.push_back(
          static_cast<double>(result.end_ns - result.begin_ns) / 1e6);
    }
    Communicator& world = *mesh_->world();
    exposed_ms = combine(exposed_ms, *mesh_->dp_cp(), ReduceOp::kMin);
    for (const double ms : combine(exposed_ms, world, ReduceOp::kMax))
      times.exposed_ms.push_back(ms);
    for (const double ms : combine(step_ms, world, ReduceOp::kMax))
      times.step_ms.push_back(ms);
    if (!profiles)
      return;
    for (size_t s = 0; s < profiles->size(); ++s) {
      StageProfile& profile = (*profiles)[s];
      const GradSync& sync = train_step.stages()[s]->sync();
      profile.params = sync.bucket_params();
      // Sparse rows, in buckets of their own, take time only for what travels.
      for (size_t b = 0; b < sync.plan().buckets.size(); ++b) {
        const PlannedBucket& bucket = sync.plan().buckets[b];
        if (bucket.sparse_row_numel == 0)
          continue;
        const auto param = static_cast<size_t>(bucket.slots.front().param);
        profile.params[param].numel = std::max<int64_t>(
            1, sync.report().buckets[b].bytes / bucket.grad_element_bytes);
      }
      profile.plan = sync.plan_options();
      for (const PlannedBucket& bucket : sync.plan().buckets) {
        for (const RunPart& slot : bucket.slots)
          profile.order.push_back(slot.param);
      }
    }
  }

  // Those whose plans differ on some rank, the configured one always.
  std::vector<int64_t> distinct(const std::vector<int64_t>& capacities) const {
    const auto count = static_cast<int64_t>(capacities.size());
    std::vector<std::vector<BucketPlan>> plans;
    for (const int64_t capacity : capacities) {
      std::vector<BucketPlan> of_stages;
      for (const StageProfile& profile : profiles_)
        of_stages.push_back(plan_of(profile, capacity));
      plans.push_back(std::move(of_stages));
    }
    std::vector<double> differ;
    for (const auto& a : plans)
      for (const auto& b : plans)
        differ.push_back(a == b ? 0 : 1);
    differ = combine(differ, *mesh_->world(), ReduceOp::kMax);
    std::vector<int64_t> kept;
    std::vector<int64_t> kept_indices;
    for (int64_t i = 0; i < count; ++i) {
      const bool is_new = std::ranges::all_of(kept_indices, [&](int64_t other) {
        return differ[static_cast<size_t>(i * count + other)] != 0;
      });
      if (!is_new)
        continue;
      kept_indices.push_back(i);
      kept.push_back(capacities[static_cast<size_t>(i)]);
    }
    return kept;
  }

  void predict() {
    double gradient_bytes = 0;
    std::vector<BackwardTimeline> timelines;
    for (const StageProfile& profile : profiles_) {
      for (const BucketParam& param : profile.params)
        gradient_bytes +=
            static_cast<double>(param.numel * param.grad_element_bytes);
      BackwardTimeline timeline;
      for (const auto& ready_ns : profile.ready_ns)
        timeline.ready_ns.push_back(median(ready_ns));
      timeline.end_ns = median(profile.backward_ns);
      // A bucket is reduced once the slowest rank has it ready.
      Communicator& group = *mesh_->dp_cp();
      timeline.ready_ns = combine(timeline.ready_ns, group, ReduceOp::kMax);
      timeline.end_ns = combine({timeline.end_ns}, group, ReduceOp::kMax)[0];
      tuning_.backward_ms += timeline.end_ns / 1e6;
      timelines.push_back(std::move(timeline));
    }
    Communicator& world = *mesh_->world();
    gradient_bytes = combine({gradient_bytes}, world, ReduceOp::kMax)[0];
    measure_all_reduce(static_cast<int64_t>(gradient_bytes));

    const std::vector<int64_t> capacities = distinct(candidate_capacities(
        configured_bytes(), static_cast<int64_t>(gradient_bytes)));
    std::vector<double> exposed_ns(capacities.size(), 0);
    std::vector<double> buckets(capacities.size(), 0);
    for (size_t s = 0; s < profiles_.size(); ++s) {
      for (size_t c = 0; c < capacities.size(); ++c) {
        const BucketPlan plan = plan_of(profiles_[s], capacities[c]);
        exposed_ns[c] +=
            predict_exposure(plan, timelines[s], tuning_.cost).exposed_ns;
        buckets[c] += static_cast<double>(plan.buckets.size());
      }
    }
    exposed_ns = combine(exposed_ns, world, ReduceOp::kMax);
    buckets = combine(buckets, world, ReduceOp::kMax);
    for (size_t c = 0; c < capacities.size(); ++c) {
      tuning_.capacities.push_back(
          {.capacity_bytes = capacities[c],
           .is_configured = capacities[c] == configured_bytes(),
           .buckets = static_cast<int>(buckets[c]),
           .predicted_exposed_ms = exposed_ns[c] / 1e6});
    }
    rank_predictions(
        tuning_.capacities, kAlikeShareOfBackward * tuning_.backward_ms);
  }

  void verify() {
    const auto& capacities = tuning_.capacities;
    std::vector<size_t> chosen;
    for (size_t c = 0; c < capacities.size(); ++c) {
      const bool is_among_the_best = c < static_cast<size_t>(options_.verified);
      if (is_among_the_best || capacities[c].is_configured)
        chosen.push_back(c);
    }
    std::vector<CapacityTimes> times(capacities.size());
    const int steps = (options_.steps + kRounds - 1) / kRounds;
    for (int round = 0; round < kRounds; ++round) {
      for (const size_t c : chosen)
        run_steps(capacities[c].capacity_bytes, steps, times[c], nullptr);
    }
    tuning_.fastest = chosen.front();
    for (const size_t c : chosen) {
      TunedCapacity& capacity = tuning_.capacities[c];
      capacity.exposed_ms = median(times[c].exposed_ms);
      capacity.step_ms = median(times[c].step_ms);
      if (*capacity.step_ms < *capacities[tuning_.fastest].step_ms)
        tuning_.fastest = c;
    }
  }

  TrainConfig config_;
  BucketTunerOptions options_;
  TrainingData data_;
  std::unique_ptr<ProcessMesh> mesh_;
  std::vector<StageProfile> profiles_;
  BucketTuning tuning_;
};

}  // namespace

std::vector<int64_t> candidate_capacities(
    int64_t configured_bytes,
    int64_t gradient_bytes) {
  std::vector<int64_t> capacities{configured_bytes};
  for (int64_t bytes = kSmallestCapacity;; bytes *= 2) {
    if (bytes != configured_bytes)
      capacities.push_back(bytes);
    if (bytes >= gradient_bytes)
      return capacities;
  }
}

void rank_predictions(std::vector<TunedCapacity>& capacities, double alike_ms) {
  double best_ms = std::numeric_limits<double>::infinity();
  for (const TunedCapacity& capacity : capacities)
    best_ms = std::min(best_ms, capacity.predicted_exposed_ms);
  const auto key = [&](const TunedCapacity& capacity) {
    const double over_ms = capacity.predicted_exposed_ms - best_ms;
    return std::pair(
        alike_ms > 0 ? std::floor(over_ms / alike_ms) : over_ms,
        -capacity.capacity_bytes);
  };
  std::ranges::sort(capacities, {}, key);
}

std::string BucketTuning::table() const {
  std::string text = fmt::format(
      "all-reduce over {} rank{}: {:.3f} ms + {:.3f} ms per MiB\n"
      "{:>9}  {:>11}  {:>9}\n",
      ranks,
      ranks == 1 ? "" : "s",
      cost.latency_ns / 1e6,
      cost.ns_per_byte * static_cast<double>(MiB) / 1e6,
      "MiB",
      "measured ms",
      "fitted ms");
  for (const AllReduceSample& sample : samples) {
    text += fmt::format(
        "{:>9.3f}  {:>11.3f}  {:>9.3f}\n",
        to_mib(sample.bytes),
        sample.time_ns / 1e6,
        cost.time_ns(sample.bytes) / 1e6);
  }
  text += fmt::format(
      "backward of the last micro-batch: {:.2f} ms from its first gradient to "
      "its last\n\n"
      "{:>13}  {:>7}  {:>20}  {:>19}  {:>8}\n",
      backward_ms,
      "bucket_cap_mb",
      "buckets",
      "predicted exposed ms",
      "measured exposed ms",
      "step ms");
  const auto measured = [](const std::optional<double>& ms) {
    return ms ? fmt::format("{:.2f}", *ms) : std::string("-");
  };
  for (size_t i = 0; i < capacities.size(); ++i) {
    const TunedCapacity& capacity = capacities[i];
    text += fmt::format(
        "{:>13}  {:>7}  {:>20.2f}  {:>19}  {:>8}{}{}\n",
        to_mib(capacity.capacity_bytes),
        capacity.buckets,
        capacity.predicted_exposed_ms,
        measured(capacity.exposed_ms),
        measured(capacity.step_ms),
        capacity.is_configured ? "  (the config's)" : "",
        i == fastest ? "  <- fastest" : "");
  }
  return text;
}

std::string with_bucket_capacity(
    const std::string& config_text,
    int64_t capacity_bytes) {
  auto config = nlohmann::ordered_json::parse(config_text);
  auto& value = config["distributed"]["bucket_cap_mb"];
  if (capacity_bytes % MiB == 0)
    value = capacity_bytes / MiB;
  else
    value = to_mib(capacity_bytes);
  return config.dump(2) + "\n";
}

void check_tunable(const TrainConfig& config) {
  std::vector<std::string> problems;
  const DistributedConfig& distributed = config.distributed;
  if (distributed.dims.replicas() == distributed.replica_groups()) {
    problems.push_back(fmt::format(
        "[tune-buckets] gradients are summed over {}{} = 1 rank, so there is "
        "no communication to tune; give --nproc more ranks",
        distributed.dims.product(kReplicaAxes),
        distributed.replica_groups() == 1
            ? ""
            : fmt::format(
                  ", in {} groups (distributed.local_steps)",
                  distributed.replica_groups())));
  }
  if (distributed.grad_sync == GradSyncAlgorithm::kPerParam) {
    problems.emplace_back(
        "[tune-buckets] /distributed/grad_sync = \"per_param\" has no buckets; "
        "give distributed.grad_sync=bucketed");
  }
  if (!problems.empty())
    throw ConfigError(problems);
  static_cast<void>(open_training_data(training_data_options(config)));
}

BucketTuning tune_buckets(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const BucketTunerOptions& options) {
  check_tunable(config);
  return Tuner(config, environment, options).run();
}

}  // namespace brigade
