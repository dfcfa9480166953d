// brigade doctor [--nproc N]: is this machine fit to train on?
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/base/units.h"
#include "brigade/base/version.h"
#include "brigade/comm/agreement.h"
#include "brigade/comm/gpus.h"
#include "brigade/comm/world.h"
#include "brigade/doctor/layout_check.h"
#include "brigade/doctor/machine_facts.h"
#include "brigade/doctor/rates.h"
#include "brigade/files/output_path.h"
#include "brigade/launch/network.h"
#include "brigade/train/peak_rate.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

// A folder of rank 0's that is gone with the object.
class ScratchFolder {
 public:
  explicit ScratchFolder(const fs::path& parent)
      : path_(
            fs::absolute(parent) /
            fmt::format("brigade-doctor-{}", ::getpid())) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error)
      throw StorageError(fmt::format(
          "[doctor] cannot make '{}': {}; give --folder one that every rank "
          "can read and this one can write",
          path_.string(),
          error.message()));
  }
  ~ScratchFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void print_fact(const std::string& name, const std::string& value) {
  fmt::print("{:<18} {}\n", name, value);
  std::fflush(stdout);
}

class Doctor {
 public:
  Doctor(const LaunchEnvironment& environment, const std::string& folder)
      : environment_(environment), folder_(folder) {}

  // The number of things that are wrong.
  int run() {
    if (is_first()) {
      check_can_make(folder_ / "doctor");
      print_machine();
    }
    open_world();
    print_rates();
    if (environment_.world_size > 1)
      print_links();
    check();
    return problems_;
  }

 private:
  bool is_first() const { return environment_.rank == 0; }

  void advise(const std::string& text) {
    ++problems_;
    if (is_first())
      print_fact("", "! " + text);
  }

  void print_machine() {
    print_fact("brigade", version());
    for (const MachineFact& fact : machine_facts()) {
      print_fact(fact.name, fact.value);
      if (!fact.advice.empty())
        advise(fact.advice);
    }
    const int64_t bytes = 128 * MiB;
    print_fact(
        "disk",
        fmt::format(
            "{:.0f} MB/s to '{}', sync included",
            disk_bytes_per_s(folder_, bytes) / 1e6,
            folder_.string()));
  }

  void open_world() {
    const auto timeout = std::chrono::minutes(2);
    if (environment_.world_size > 1)
      store_ = open_store(environment_, timeout);
    MeshStart start;
    start.backend = backend_;
    start.store = store_;
    start.on_message = [](const std::string& text) {
      fmt::print("{}\n", text);
    };
    CommunicatorOptions options;
    options.timeout = timeout;
    mesh_ = open_mesh(
        {.dp = environment_.world_size}, environment_, options, start);
    if (!is_first())
      return;
    print_fact(
        "ranks",
        fmt::format(
            "{} started by {}, {} on this host ({})",
            environment_.world_size,
            environment_.launcher.empty() ? "hand" : environment_.launcher,
            environment_.local_world_size,
            host_name()));
    if (environment_.world_size > 1) {
      const PeerAddress address = peer_address(environment_);
      print_fact(
          "peers connect to",
          address.interface.empty() ? address.address
                                    : "interface " + address.interface);
    }
  }

  // All ranks at once, as in training.
  void print_rates() {
    const auto rate = [&](torch::ScalarType dtype) {
      return peak_flops(
                 torch::dtype(dtype).device(mesh_->device()),
                 environment_.local_world_size,
                 {}) /
             1e9;
    };
    const double fp32 = rate(torch::kFloat);
    const double bf16 = rate(torch::kBFloat16);
    const auto of_experts = [&](int64_t rows) {
      return expert_flops(
                 torch::dtype(torch::kBFloat16).device(mesh_->device()), rows) /
             1e9;
    };
    const double few = of_experts(8);
    const double many = of_experts(64);
    if (!is_first())
      return;
    print_fact(
        "products of a rank",
        fmt::format("{:.0f} GFLOP/s in float32, {:.0f} in bf16", fp32, bf16));
    print_fact(
        "products of experts",
        fmt::format(
            "{:.0f} GFLOP/s in bf16 with 8 tokens each, {:.0f} with 64",
            few,
            many));
  }

  void print_links() {
    const GroupRate rate = measure_group(*mesh_->world(), 16 * MiB);
    if (is_first())
      print_fact(
          backend_ == Backend::kNccl ? "NCCL" : "Gloo",
          fmt::format(
              "latency {:.0f} us; each rank sends {}/s in an all-reduce of "
              "16 MiB, {}/s in an all-to-all, as experts' tokens go",
              rate.latency_us,
              readable_bytes(rate.all_reduce_gb_per_s * 1e9),
              readable_bytes(rate.exchange_gb_per_s * 1e9)));
  }

  void check() {
    const Agreement agreement(*mesh_->world());
    std::optional<ScratchFolder> scratch;
    std::string path;
    if (is_first()) {
      scratch.emplace(folder_);
      write_layout_check_data(scratch->path());
      path = scratch->path().string();
    }
    path = agreement.text_of(0, path);
    if (agreement.max(fs::exists(fs::path(path) / "run.json") ? 0 : 1) > 0)
      throw ConfigError(fmt::format(
          "[doctor] some rank does not see '{}', where rank 0 wrote the tiny "
          "model's data; give --folder one that all hosts share",
          path));
    if (is_first())
      fmt::print(
          "\na tiny model, three steps, against one rank with ATen's kernels "
          "(at most {:.0e}):\n{:<20} {:>9} {:>14}\n",
          LayoutDifference::kTolerance,
          "layout",
          "loss",
          "gradient norm");
    check_layouts(
        environment_,
        store_,
        path,
        [this](const LayoutDifference& each) {
          if (!each.is_good())
            ++problems_;
          if (is_first())
            print(each);
        },
        backend_);
    mesh_->world()->barrier();
    problems_ = static_cast<int>(agreement.max(problems_));
    if (is_first())
      fmt::print(
          "\n{}\n",
          problems_ == 0
              ? "this machine is fit to train on"
              : fmt::format(
                    "{} wrong",
                    problems_ == 1 ? std::string("one thing is")
                                   : fmt::format("{} things are", problems_)));
  }

  static void print(const LayoutDifference& each) {
    if (!each.failure.empty())
      fmt::print("{:<20} failed: {}\n", each.layout, each.failure);
    else
      fmt::print(
          "{:<20} {:>9.1e} {:>14.1e}{}\n",
          each.layout,
          each.loss,
          each.grad_norm,
          each.is_good() ? "" : "  ! too far");
    std::fflush(stdout);
  }

  LaunchEnvironment environment_;
  fs::path folder_;
  // On the GPUs, where this build and machine have some.
  Backend backend_ =
      find_gpus().missing.empty() ? Backend::kNccl : Backend::kGloo;
  StorePtr store_;
  std::unique_ptr<ProcessMesh> mesh_;
  int problems_ = 0;
};

}  // namespace

void check_machine(const DoctorArguments& arguments) {
  const Launch launch = read_launch(arguments.nproc);
  if (launch.is_supervisor)
    return supervise_self(launch);
  share_out_threads(launch.environment, std::nullopt);
  if (Doctor(launch.environment, arguments.folder).run() > 0)
    throw Exit{static_cast<int>(ExitCode::kUnexpected)};
}

}  // namespace brigade::cli
