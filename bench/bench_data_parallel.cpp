// What gradient synchronisation costs, each figure a ratio from one run: ours
// and the peer take turns, round after round, on the same ranks and threads.
//   bench_data_parallel [ddp] [buckets] [raw] [bookkeeping] [link]
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "bench/run_ranks.h"
#include "bench/slow_link.h"
#include "brigade/base/error.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/world.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/metrics/clock.h"
#include "brigade/optim/adamw.h"
#include "brigade/wrap/data_parallel.h"

namespace brigade {
namespace {

using Times = std::vector<double>;  // ms, one per step

constexpr int kRanks = 2;
constexpr int kRounds = 3;
constexpr int kWarmup = 2;
constexpr int kSteps = 5;  // per round
// 24 x (2048^2 + 2048): 100.7 M parameters.
constexpr int kLayers = 24;
constexpr int64_t kWidth = 2048;
constexpr int64_t kBatch = 4;
// Over a link of 1 Gbit/s: 24 x (1024^2 + 1024), 96 MiB of gradients.
constexpr int kLinkMegabits = 1000;
constexpr int kLinkLayers = 24;
constexpr int64_t kLinkWidth = 1024;

double quantile(Times times, double q) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(
      q * static_cast<double>(times.size() - 1) + 0.5)];
}

double median(const Times& times) {
  return quantile(times, 0.5);
}

std::string summary(const Times& times) {
  return fmt::format(
      "{:9.3f} ms [{:.3f}, {:.3f}]",
      median(times),
      quantile(times, 0.25),
      quantile(times, 0.75));
}

void print_ratio(
    const std::string& what,
    const Times& ours,
    const Times& theirs,
    double target) {
  const double ratio = median(ours) / median(theirs);
  fmt::print(
      "{:<34} {}  against {}  {:.2f}x  (target {:.2f}x: {})\n",
      what,
      summary(ours),
      summary(theirs),
      ratio,
      target,
      ratio <= target ? "met" : "missed");
  std::fflush(stdout);
}

void append(Times& all, const Times& more) {
  all.insert(all.end(), more.begin(), more.end());
}

Times read_times(const std::filesystem::path& path) {
  std::ifstream file(path);
  Times times;
  for (double time = 0; file >> time;)
    times.push_back(time);
  if (times.empty())
    throw StorageError(
        fmt::format("[bench] '{}' holds no times", path.string()));
  return times;
}

void write_times(const std::filesystem::path& path, const Times& times) {
  std::ofstream file(path);
  for (const double time : times)
    file << fmt::format("{:.6f}\n", time);
}

std::vector<Param> named(const torch::nn::Module& module) {
  std::vector<Param> params;
  for (const auto& item : module.named_parameters())
    params.push_back({item.key(), item.value()});
  return params;
}

struct Stack : torch::nn::Module {
  Stack(int layers, int64_t width) {
    for (int i = 0; i < layers; ++i) {
      linears.push_back(
          register_module(std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  torch::Tensor loss(torch::Tensor x) {
    for (auto& linear : linears)
      x = linear(x);
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> linears;
};

// One rank's part of a case.
struct Rank {
  LaunchEnvironment environment;
  std::unique_ptr<ProcessMesh> mesh;
  const CommunicatorPtr& world() const { return mesh->dp_cp(); }
};

Times time_steps(
    const Rank& rank,
    int warmup,
    int steps,
    const std::function<void()>& step) {
  Times times;
  for (int i = 0; i < warmup + steps; ++i) {
    rank.world()->barrier();
    const int64_t begin_ns = steady_now_ns();
    step();
    if (i >= warmup)
      times.push_back(static_cast<double>(steady_now_ns() - begin_ns) / 1e6);
  }
  return times;
}

Times train_stack(
    const Rank& rank,
    GradSyncAlgorithm algorithm,
    int layers,
    int64_t width,
    int steps,
    const BucketHook& hook) {
  torch::manual_seed(1);
  Stack stack(layers, width);
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.hook = hook;
  const auto sync_owner =
      make_grad_sync(algorithm, named(stack), rank.world(), options);
  GradSync& sync = *sync_owner;
  AdamW optimizer = make_adamw(sync, 0.01);
  const auto x = torch::randn({kBatch, width});
  return time_steps(rank, kWarmup, steps, [&] {
    stack.loss(x).backward();
    sync.finish();
    optimizer.step(1e-4, sync.grad_scale(), ops::AfterRead::kZero);
    sync.reset();
  });
}

// The flat buckets of the 100 M parameters through our communicator and through
// c10d's Gloo with nothing around it; alternating steps, in one process.
void raw_all_reduce(const Rank& rank, const std::filesystem::path& folder) {
  std::vector<torch::Tensor> buckets(
      16, torch::ones({25 * MiB / 4}, torch::kFloat));
  for (auto& bucket : buckets)
    bucket = bucket.clone();
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(
      c10d::ProcessGroupGloo::createDeviceForInterface("lo"));
  c10d::ProcessGroupGloo gloo(
      c10::make_intrusive<c10d::FileStore>(
          (folder / "bare_gloo").string(), rank.world()->size()),
      rank.world()->rank(),
      rank.world()->size(),
      options);
  Times ours;
  Times bare;
  for (int round = 0; round < kWarmup + kRounds * kSteps; ++round) {
    append(ours, time_steps(rank, 0, 1, [&] {
             std::vector<WorkPtr> works;
             for (const auto& bucket : buckets)
               works.push_back(rank.world()->all_reduce(bucket));
             for (const auto& work : works)
               work->wait();
           }));
    append(bare, time_steps(rank, 0, 1, [&] {
             std::vector<c10::intrusive_ptr<c10d::Work>> works;
             for (const auto& bucket : buckets) {
               std::vector<torch::Tensor> tensors{bucket};
               works.push_back(gloo.allreduce(tensors));
             }
             for (const auto& work : works)
               work->wait();
           }));
  }
  ours.erase(ours.begin(), ours.begin() + kWarmup);
  bare.erase(bare.begin(), bare.begin() + kWarmup);
  if (rank.environment.rank == 0) {
    write_times(folder / "ours", ours);
    write_times(folder / "bare", bare);
  }
}

double seconds_since(int64_t begin_ns) {
  return static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
}

// The slowest rank's.
double slowest(const Rank& rank, double seconds) {
  auto value = torch::full({1}, seconds, torch::kDouble);
  rank.world()->all_reduce(value, ReduceOp::kMax)->wait();
  return value.item<double>();
}

// Communication that overlap leaves exposed, on a batch whose backward takes at
// least twice as long as the communication; both are measured by themselves
// first, and a step's waiting is compared with that communication. DataParallel
// as users get it: default buckets.
void slow_link(const Rank& rank, const std::filesystem::path& folder) {
  torch::manual_seed(1);
  Stack stack(kLinkLayers, kLinkWidth);
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  BucketedGradSync sync(named(stack), rank.world(), options);
  std::vector<double> alone_s;
  for (int i = 0; i < 1 + kSteps; ++i) {
    rank.world()->barrier();
    const int64_t begin_ns = steady_now_ns();
    std::vector<WorkPtr> works;
    for (const FlatSegment& segment : sync.segments())
      works.push_back(rank.world()->all_reduce(segment.main_grad));
    for (const auto& work : works)
      work->wait();
    if (i > 0)
      alone_s.push_back(slowest(rank, seconds_since(begin_ns)));
  }
  const double communication_s = median(alone_s);

  int64_t batch = 128;
  double backward_s = 0;
  while (true) {
    const auto x = torch::randn({batch, kLinkWidth});
    sync.set_accumulate_only(true);
    for (int i = 0; i < 2; ++i) {
      const auto loss = stack.loss(x);
      const int64_t begin_ns = steady_now_ns();
      loss.backward();
      backward_s = slowest(rank, seconds_since(begin_ns));
      sync.reset();
      sync.zero_main_grads();
    }
    sync.set_accumulate_only(false);
    if (backward_s >= 2.2 * communication_s)
      break;
    batch = static_cast<int64_t>(
        static_cast<double>(batch) *
        std::clamp(2.4 * communication_s / backward_s, 1.1, 8.0));
  }

  const auto x = torch::randn({batch, kLinkWidth});
  Times exposed_ms;
  Times step_communication_ms;
  std::string table;
  for (int step = 0; step < kWarmup + kSteps; ++step) {
    const auto loss = stack.loss(x);
    rank.world()->barrier();
    loss.backward();
    sync.finish();
    if (step >= kWarmup) {
      const SyncReport& report = sync.report();
      exposed_ms.push_back(static_cast<double>(report.exposed_ns()) / 1e6);
      step_communication_ms.push_back(
          static_cast<double>(report.communication_ns()) / 1e6);
      table = report.table(rank.world()->size());
    }
    sync.reset();
    sync.zero_main_grads();
  }
  rank.world()->barrier();
  if (rank.environment.rank != 0)
    return;
  fmt::print(
      "link: batch {}, backward {:.0f} ms, communication {:.0f} ms by "
      "themselves; in the last step:\n{}",
      batch,
      backward_s * 1e3,
      communication_s * 1e3,
      table);
  write_times(folder / "exposed", exposed_ms);
  write_times(folder / "communication", Times(1, communication_s * 1e3));
}

void run_rank(const std::string& what, const std::filesystem::path& folder) {
  at::set_num_threads(1);
  Rank rank;
  rank.environment = read_environment(process_environment());
  if (what == "link") {
    const auto timeout = std::chrono::minutes(1);
    rank.mesh = std::make_unique<ProcessMesh>(
        ParallelDims{.dp = rank.environment.world_size},
        rank.environment.rank,
        open_store(rank.environment, timeout),
        CommunicatorOptions{.timeout = timeout},
        BackendOptions{.gloo = {.interface = SlowLink::kInterface}});
    return slow_link(rank, folder);
  }
  rank.mesh = open_mesh(
      ParallelDims{.dp = rank.environment.world_size}, rank.environment, {});
  if (what == "raw")
    return raw_all_reduce(rank, folder);
  Times times;
  if (what == "fp32" || what == "bf16") {
    times = train_stack(
        rank,
        GradSyncAlgorithm::kBucketed,
        kLayers,
        kWidth,
        kSteps,
        what == "bf16" ? bf16_hook() : all_reduce_hook());
  } else if (what == "bucketed") {
    times = train_stack(
        rank,
        GradSyncAlgorithm::kBucketed,
        100,
        16,
        20 * kSteps,
        all_reduce_hook());
  } else {
    times = train_stack(
        rank,
        GradSyncAlgorithm::kPerParam,
        100,
        16,
        20 * kSteps,
        all_reduce_hook());
  }
  if (rank.environment.rank == 0)
    write_times(folder / "times", times);
  rank.world()->barrier();
}

void launch(std::vector<std::string> command) {
  SupervisorOptions options;
  options.nproc = kRanks;
  options.command = std::move(command);
  options.threads_per_rank = 1;
  options.unprefixed_rank = 0;
  options.environment = {
      {"GLOO_SOCKET_IFNAME", "lo"}, {"OPENBLAS_NUM_THREADS", "1"}};
  bench::run_ranks(options, "data parallelism");
}

class Driver {
 public:
  explicit Driver(std::filesystem::path folder) : folder_(std::move(folder)) {}

  Times ours(const std::string& what) {
    launch({"/proc/self/exe", "--rank", what, folder_.string()});
    return read_times(folder_ / "times");
  }
  Times ddp(bool foreach) {
    const auto out = folder_ / "ddp";
    launch(
        {"/usr/bin/python3",
         BRIGADE_SOURCE_DIR "/bench/peers/ddp.py",
         fmt::format("--layers={}", kLayers),
         fmt::format("--width={}", kWidth),
         fmt::format("--batch={}", kBatch),
         fmt::format("--steps={}", kSteps),
         fmt::format("--warmup={}", kWarmup),
         fmt::format("--foreach={}", foreach ? 1 : 0),
         "--out=" + out.string()});
    return read_times(out);
  }

  void against_ddp() {
    Times fp32;
    Times bf16;
    Times plain;
    Times foreach;
    for (int round = 0; round < kRounds; ++round) {
      append(fp32, ours("fp32"));
      append(plain, ddp(false));
      append(bf16, ours("bf16"));
      append(foreach, ddp(true));
    }
    // The faster of PyTorch's two is the peer.
    const bool is_foreach = median(foreach) < median(plain);
    const Times& peer = is_foreach ? foreach : plain;
    fmt::print(
        "PyTorch DDP's step, AdamW foreach={}; the other takes {}\n",
        is_foreach,
        summary(is_foreach ? plain : foreach));
    print_ratio("step, fp32 on the wire / DDP", fp32, peer, 0.80);
    print_ratio("step, bf16 on the wire / DDP", bf16, peer, 0.65);
  }

  void buckets() {
    Times bucketed;
    Times per_param;
    for (int round = 0; round < kRounds; ++round) {
      append(bucketed, ours("bucketed"));
      append(per_param, ours("per_param"));
    }
    print_ratio("200 parameters, bucketed/per_param", bucketed, per_param, .75);
  }

  void raw() {
    launch({"/proc/self/exe", "--rank", "raw", folder_.string()});
    print_ratio(
        "all-reduce of 400 MiB / bare Gloo",
        read_times(folder_ / "ours"),
        read_times(folder_ / "bare"),
        1 / 0.95);
  }

  void slow_link() {
    const std::string why_not = SlowLink::why_not();
    if (!why_not.empty()) {
      fmt::print("link: skipped, {}\n", why_not);
      return;
    }
    const SlowLink link(kLinkMegabits);
    launch(link.on_host_of_rank(
        {std::filesystem::read_symlink("/proc/self/exe").string(),
         "--rank",
         "link",
         folder_.string()}));
    print_ratio(
        "1 Gbit/s: exposed/communication",
        read_times(folder_ / "exposed"),
        read_times(folder_ / "communication"),
        0.35);
  }

 private:
  std::filesystem::path folder_;
};

// Two identical stacks of scalars, one synchronised over a world of one; both
// accumulate into gradients that exist already.
void bookkeeping() {
  at::set_num_threads(1);
  constexpr int kParams = 1000;
  struct Scalars : torch::nn::Module {
    Scalars() {
      for (int i = 0; i < kParams; ++i)
        list.push_back(register_parameter(std::to_string(i), torch::ones({1})));
    }
    torch::Tensor loss() { return torch::cat(list).sum(); }
    std::vector<torch::Tensor> list;
  };
  Scalars plain;
  for (auto& param : plain.list)
    param.mutable_grad() = torch::zeros({1});
  Scalars wrapped;
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  BucketedGradSync sync(named(wrapped), make_self_communicator(), options);
  Times with_sync;
  Times without;
  for (int step = 0; step < 300; ++step) {
    const auto plain_loss = plain.loss();
    const auto wrapped_loss = wrapped.loss();
    const int64_t begin_ns = steady_now_ns();
    plain_loss.backward();
    const int64_t middle_ns = steady_now_ns();
    wrapped_loss.backward();
    sync.finish();
    sync.reset();
    const int64_t end_ns = steady_now_ns();
    without.push_back(static_cast<double>(middle_ns - begin_ns) / 1e6);
    with_sync.push_back(static_cast<double>(end_ns - middle_ns) / 1e6);
  }
  // Differences of neighbours in time: a machine that is slowed for a while
  // slows both.
  Times cost;
  for (size_t i = 0; i < without.size(); ++i)
    cost.push_back(with_sync[i] - without[i]);
  const double cost_us = median(cost) * 1e3 / kParams;
  fmt::print(
      "bookkeeping: backward with {}, without {}: {:.2f} us per parameter "
      "(target 1 us: {})\n",
      summary(with_sync),
      summary(without),
      cost_us,
      cost_us < 1 ? "met" : "missed");
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "--rank") {
    run_rank(arguments[1], arguments[2]);
    return 0;
  }
  const auto wants = [&](const std::string& name) {
    return arguments.empty() ||
           std::find(arguments.begin(), arguments.end(), name) !=
               arguments.end();
  };
  std::string pattern =
      (std::filesystem::temp_directory_path() / "bench_dp.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr)
    throw StorageError("[bench] cannot make a folder " + pattern);
  Driver driver(pattern);
  fmt::print("median [quartiles] a step; {} ranks, 1 thread each\n", kRanks);
  if (wants("bookkeeping"))
    bookkeeping();
  if (wants("buckets"))
    driver.buckets();
  if (wants("raw"))
    driver.raw();
  if (wants("link"))
    driver.slow_link();
  if (wants("ddp"))
    driver.against_ddp();
  std::filesystem::remove_all(pattern);
  return 0;
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  try {
    return brigade::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
