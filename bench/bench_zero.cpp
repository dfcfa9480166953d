// What ZeRO's stages cost and save, on 100 M bf16 parameters: the step's time,
// bytes that a rank sends and memory that it holds, stage by stage in turn; in
// the same rounds PyTorch's DDP, ZeroRedundancyOptimizer and FSDP2, where the
// Python named by BRIGADE_PEERS_PYTHON has them (bench/peers/zero.py).
//   bench_zero [--rows 256] [ranks ...]        # default 2 4
// and, as root, the step over a link of 1 Gbit/s between two ranks. Rows are
// those of a step's input, one micro-batch.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <unistd.h>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/run_ranks.h"
#include "bench/slow_link.h"
#include "bench/zero_peers.h"
#include "brigade/base/error.h"
#include "brigade/base/median.h"
#include "brigade/comm/world.h"
#include "brigade/kernels/cpu/tensor_memory.h"
#include "brigade/metrics/clock.h"
#include "brigade/ops/linear.h"
#include "brigade/wrap/data_parallel.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr int kLayers = 24;
constexpr int64_t kWidth = 2048;  // 24 x 2048^2: 100.7 M parameters
constexpr int kDefaultRows = 256;
constexpr int kWarmup = 2;
constexpr int kSteps = 5;
constexpr int kRounds = 3;
constexpr int kLinkMegabits = 1000;

// The figures of one rank and stage, which a run leaves in a file.
struct Figures {
  double step_ms = 0;
  double sent_bytes = 0;  // of a step, by the collectives' formulas
  double held_bytes = 0;  // between steps: weights, gradients, optimizer
  double gather_ms = 0;   // launched to finished, all buckets
  double exposed_gather_ms = 0;
};

double sent_by(const CollectiveRecord& record, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  const double n = static_cast<double>(record.bytes);
  return record.op == Collective::kAllReduce ? 2 * n * share : n * share;
}

struct Shape {
  int layers;
  int64_t width;
  int rows;
  int steps;  // after the warm-up
};

struct Layer : torch::nn::Module {
  explicit Layer(int64_t width)
      : weight(register_parameter(
            "weight",
            (torch::randn({width, width}) * 0.02).to(torch::kBFloat16))) {}
  torch::Tensor weight;
};

struct Model : torch::nn::Module {
  explicit Model(const Shape& shape) {
    for (int i = 0; i < shape.layers; ++i) {
      layers.push_back(std::make_shared<Layer>(shape.width));
      list->push_back(layers.back());
    }
    register_module("layers", list);
  }
  torch::nn::ModuleList list;
  std::vector<std::shared_ptr<Layer>> layers;
};

// Until a layer's weights can be read, in forward and (stage 3) in backward.
class WaitForWeights {
 public:
  explicit WaitForWeights(GradSync& sync) : sync_(&sync) {}

  void operator()(int layer) {
    const int64_t begin_ns = steady_now_ns();
    GatheredWeights& weights = sync_->weights();
    if (weights.units() != nullptr)
      weights.use(layer);
    else
      weights.need(sync_->params()[static_cast<size_t>(layer)]);
    waited_ns_ += steady_now_ns() - begin_ns;
  }
  void in_backward_of(const torch::Tensor& output, int layer) {
    if (sync_->weights().units() != nullptr)
      output.register_hook(
          [this, layer](const torch::Tensor&) { (*this)(layer); });
  }
  double take_ms() {
    return static_cast<double>(std::exchange(waited_ns_, 0)) / 1e6;
  }

 private:
  GradSync* sync_;
  int64_t waited_ns_ = 0;
};

// The gathers of a step with nothing to hide under.
double gather_alone_ms(GradSync& sync, int layers) {
  const int64_t begin_ns = steady_now_ns();
  if (ShardedWeights* weights = sync.weights().units()) {
    // All but the last two layers' in forward and in backward.
    for (int layer = 0; layer < 2 * layers - 2; ++layer) {
      weights->hold(layer % layers);
      weights->let_go(layer % layers);
    }
  } else {
    sync.gather_weights();
    sync.weights().need_all();
  }
  return static_cast<double>(steady_now_ns() - begin_ns) / 1e6;
}

// Anonymous memory in use: not what libraries read from files, nor what a step
// has freed (which a program keeps for the next one).
double held_bytes() {
  ops::release_freed_memory();
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:"))
      return 1024.0 * std::stod(line.substr(std::string("RssAnon:").size()));
  }
  throw StorageError("[bench] /proc/self/status has no RssAnon");
}

// held_bytes is all of it.
Figures train(int stage, const ProcessMesh& mesh, const Shape& shape) {
  const CommunicatorPtr& world = mesh.dp_cp();
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.sharding = static_cast<Sharding>(stage);
  options.gather = GatherMode::kOverlapForward;
  torch::manual_seed(1);
  const auto net = std::make_shared<Model>(shape);
  DataParallel model(net, world, options);
  AdamW optimizer = make_adamw(model.sync(), 0.01);
  ops::release_freed_memory();  // as the trainer does: initial weights
  const auto input =
      torch::randn({shape.rows, shape.width}).to(torch::kBFloat16);
  std::vector<double> times;
  std::vector<double> gather;
  std::vector<double> exposed;
  WaitForWeights wait_for_weights(model.sync());
  Figures figures;
  for (int step = 0; step < kWarmup + shape.steps; ++step) {
    world->barrier();
    world->clear_records();
    const int64_t begin_ns = steady_now_ns();
    auto x = input;
    for (int i = 0; i < shape.layers; ++i) {
      wait_for_weights(i);
      x = ops::linear(
          x,
          net->layers[static_cast<size_t>(i)]->weight,
          {},
          {.weight_grad = ops::WeightGrad::kAccumulate});
      wait_for_weights.in_backward_of(x, i);
    }
    x.to(torch::kFloat).square().mean().backward();
    model.sync().finish();
    optimizer.step(1e-4, model.sync().grad_scale(), ops::AfterRead::kZero);
    model.sync().reset();
    model.gather_weights();
    const int64_t end_ns = steady_now_ns();
    const double waited_ms = wait_for_weights.take_ms();
    if (step < kWarmup)
      continue;
    figures.sent_bytes = 0;
    times.push_back(static_cast<double>(end_ns - begin_ns) / 1e6);
    exposed.push_back(waited_ms);
    for (const CollectiveRecord& record : world->records()) {
      if (record.op == Collective::kAllReduce ||
          record.op == Collective::kReduceScatter ||
          record.op == Collective::kAllGather)
        figures.sent_bytes += sent_by(record, world->size());
    }
  }
  model.sync().weights().need_all();
  world->barrier();
  figures.held_bytes = held_bytes();
  if (ShardedWeights* weights = model.sync().weights().units())
    weights->end_pass();
  for (int i = 0; i < shape.steps; ++i) {
    world->barrier();
    gather.push_back(gather_alone_ms(model.sync(), shape.layers));
  }
  figures.step_ms = median(times);
  figures.gather_ms = median(gather);
  figures.exposed_gather_ms = median(exposed);
  return figures;
}

Figures run_stage(int stage, int rows, const ProcessMesh& mesh) {
  // A small model first: what libraries and kernels take by themselves is not
  // the stage's.
  const Figures small =
      train(stage, mesh, {.layers = 2, .width = 64, .rows = rows, .steps = 1});
  Figures figures = train(
      stage,
      mesh,
      {.layers = kLayers, .width = kWidth, .rows = rows, .steps = kSteps});
  figures.held_bytes -= small.held_bytes;
  return figures;
}

void run_rank(int stage, int rows, bool is_slow, const fs::path& out) {
  ops::set_up_tensor_memory();
  at::set_num_threads(1);
  const auto environment = read_environment(process_environment());
  const auto timeout = std::chrono::minutes(2);
  const ProcessMesh mesh(
      ParallelDims{.dp = environment.world_size},
      environment.rank,
      open_store(environment, timeout),
      CommunicatorOptions{.timeout = timeout, .max_records = 10000},
      BackendOptions{
          .gloo = {
              .interface =
                  is_slow ? SlowLink::kInterface : std::string("lo")}});
  const Figures figures = run_stage(stage, rows, mesh);
  mesh.dp_cp()->barrier();
  if (environment.rank == 0) {
    std::ofstream(out) << fmt::format(
        "{} {} {} {} {}\n",
        figures.step_ms,
        figures.sent_bytes,
        figures.held_bytes,
        figures.gather_ms,
        figures.exposed_gather_ms);
  }
}

Figures read_figures(const fs::path& path) {
  Figures figures;
  std::ifstream file(path);
  if (!(file >> figures.step_ms >> figures.sent_bytes >> figures.held_bytes >>
        figures.gather_ms >> figures.exposed_gather_ms))
    throw StorageError(
        fmt::format("[bench] '{}' holds no figures", path.string()));
  return figures;
}

// The figures of rank 0; over loopback if `link` is null.
Figures measure(
    int stage,
    int ranks,
    int rows,
    const SlowLink* link,
    const fs::path& out) {
  const std::vector<std::string> command = {
      fs::read_symlink("/proc/self/exe").string(),
      "--rank",
      std::to_string(stage),
      std::to_string(rows),
      link == nullptr ? "0" : "1",
      out.string()};
  SupervisorOptions options;
  options.nproc = ranks;
  options.command = link == nullptr ? command : link->on_host_of_rank(command);
  options.threads_per_rank = 1;
  options.unprefixed_rank = 0;
  bench::run_ranks(options, "zero stages");
  return read_figures(out);
}

// Bytes that a rank holds between steps, per bf16 parameter: weight, main_grad,
// moments and the other half of the master; in stage 3 the first layer's
// weights are there for the next step.
double formula_bytes(int stage, int ranks) {
  constexpr double kLayerBytes = double{2} * kWidth * kWidth;
  constexpr double kParameters = double{1} * kLayers * kWidth * kWidth;
  const auto of = [&](int divided_from) {
    return stage >= divided_from ? 1.0 / ranks : 1.0;
  };
  return kParameters * (2 * of(3) + 4 * of(2) + 10 * of(1)) +
         (stage == 3 ? kLayerBytes : 0);
}

void print_table(
    const std::vector<std::vector<Figures>>& rounds,
    int ranks,
    const std::string& where) {
  const auto pick = [&](int stage, double Figures::*member) {
    std::vector<double> values;
    for (const Figures& figures : rounds[static_cast<size_t>(stage)])
      values.push_back(figures.*member);
    return median(values);
  };
  fmt::print(
      "{} ranks, {}\n{:>5} {:>9} {:>7} {:>9} {:>7} {:>10} {:>8} {:>9} {:>8}\n",
      ranks,
      where,
      "stage",
      "step ms",
      "x",
      "sent MB",
      "x",
      "held MB",
      "formula",
      "gather ms",
      "exposed");
  for (int stage = 0; stage < static_cast<int>(rounds.size()); ++stage) {
    const double gather = pick(stage, &Figures::gather_ms);
    fmt::print(
        "{:>5} {:>9.1f} {:>7.3f} {:>9.1f} {:>7.3f} {:>10.1f} {:>8.1f} {:>9.1f} "
        "{:>7.0f}%\n",
        stage,
        pick(stage, &Figures::step_ms),
        pick(stage, &Figures::step_ms) / pick(0, &Figures::step_ms),
        pick(stage, &Figures::sent_bytes) / 1e6,
        pick(stage, &Figures::sent_bytes) / pick(0, &Figures::sent_bytes),
        pick(stage, &Figures::held_bytes) / 1e6,
        formula_bytes(stage, ranks) / 1e6,
        stage == 0 ? 0.0 : gather,
        stage == 0 ? 0.0
                   : 100 * pick(stage, &Figures::exposed_gather_ms) / gather);
  }
  std::fflush(stdout);
}

// PyTorch's, each with the stage of ours that divides as much.
struct PeerRounds {
  std::string kind;
  int stage;
  std::vector<ZeroPeers::Figures> rounds;
};

void print_peers(
    const std::vector<PeerRounds>& peers,
    const std::vector<std::vector<Figures>>& ours) {
  const auto of = [](const auto& rounds, auto member) {
    std::vector<double> values;
    for (const auto& figures : rounds)
      values.push_back(figures.*member);
    return median(values);
  };
  for (const PeerRounds& peer : peers) {
    const auto& stage = ours[static_cast<size_t>(peer.stage)];
    const double step_ms = of(peer.rounds, &ZeroPeers::Figures::step_ms);
    const double held = of(peer.rounds, &ZeroPeers::Figures::held_bytes);
    fmt::print(
        "PyTorch {:>6} {:>9.1f} ms, {:>8.1f} MB; stage {} / it: {:.3f} of the "
        "time, {:.3f} of the memory\n",
        peer.kind,
        step_ms,
        held / 1e6,
        peer.stage,
        of(stage, &Figures::step_ms) / step_ms,
        of(stage, &Figures::held_bytes) / held);
  }
  std::fflush(stdout);
}

void compare(
    int ranks,
    int rows,
    const SlowLink* link,
    const std::optional<ZeroPeers>& peers,
    const fs::path& folder) {
  std::vector<std::vector<Figures>> rounds(4);
  std::vector<PeerRounds> theirs;
  if (peers)
    theirs = {{"ddp", 0, {}}, {"zero1", 1, {}}, {"fsdp2", 3, {}}};
  for (int round = 0; round < kRounds; ++round) {
    for (int stage = 0; stage < 4; ++stage)
      rounds[static_cast<size_t>(stage)].push_back(
          measure(stage, ranks, rows, link, folder / "out"));
    for (PeerRounds& peer : theirs)
      peer.rounds.push_back(peers->run(peer.kind, ranks, folder / "out"));
  }
  print_table(
      rounds,
      ranks,
      link == nullptr ? "loopback" : fmt::format("{} Mbit/s", kLinkMegabits));
  print_peers(theirs, rounds);
}

int number(const std::string& text) {
  int value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw ConfigError(fmt::format("[bench] '{}' is not a number", text));
  return value;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 5 && arguments[0] == "--rank") {
    run_rank(
        number(arguments[1]),
        number(arguments[2]),
        arguments[3] == "1",
        arguments[4]);
    return 0;
  }
  const fs::path folder =
      fs::temp_directory_path() / fmt::format("brigade-zero-{}", ::getpid());
  fs::create_directories(folder);
  int rows = kDefaultRows;
  std::vector<int> ranks;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--rows" && i + 1 < arguments.size())
      rows = number(arguments[++i]);
    else
      ranks.push_back(number(arguments[i]));
  }
  if (rows == 0)
    throw ConfigError("[bench] --rows 0: a step needs at least one row");
  std::optional<ZeroPeers> peers = ZeroPeers(
      {.layers = kLayers,
       .rows = rows,
       .steps = kSteps,
       .warmup = kWarmup,
       .width = kWidth});
  if (const std::string why_not = peers->why_not(); !why_not.empty()) {
    fmt::print("PyTorch as a peer: skipped, {}\n", why_not);
    std::fflush(stdout);
    peers.reset();
  }
  for (const int each : ranks.empty() ? std::vector<int>{2, 4} : ranks)
    compare(each, rows, nullptr, peers, folder);
  if (const std::string why_not = SlowLink::why_not(); !why_not.empty()) {
    fmt::print(
        "over a link of {} Mbit/s: skipped, {}\n", kLinkMegabits, why_not);
  } else {
    const SlowLink link(kLinkMegabits);
    compare(2, rows, &link, std::nullopt, folder);
  }
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  try {
    return brigade::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
