// How long do ranks take to start, and what do they open?
//
//   bench_start [ranks ...]       # default 2 4 8 16 32 64 128
//
// Starts the ranks of a grid as processes of this machine, as `brigade train
// --nproc` does, each of which loads libtorch, makes its mesh and meets the
// others in a barrier. Prints, per number of ranks: seconds from the first
// process to the last rank's barrier, of which for the mesh alone (on the
// slowest rank), and the most descriptors, threads and groups of a rank.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/run_ranks.h"
#include "brigade/comm/world.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// As many axes as the number allows: tp 2, pp 2, the rest dp.
ParallelDims dims_of(int ranks) {
  ParallelDims dims;
  dims.tp = ranks % 2 == 0 && ranks > 2 ? 2 : 1;
  dims.pp = ranks % 4 == 0 && ranks > 4 ? 2 : 1;
  dims.dp = ranks / (dims.tp * dims.pp);
  return dims;
}

int64_t entries_of(const char* folder) {
  const fs::directory_iterator all(folder);
  return std::distance(fs::begin(all), fs::end(all));
}

struct Start {
  double all_s = 0;
  double mesh_s = 0;
  int64_t descriptors = 0;
  int64_t threads = 0;
  int64_t groups = 0;
};

void run_rank(int64_t begin_ns, const fs::path& folder) {
  at::set_num_threads(1);
  const int64_t loaded_ns = steady_now_ns();
  const auto environment = read_environment(process_environment());
  CommunicatorOptions options;
  options.timeout = std::chrono::minutes(4);
  const auto mesh =
      open_mesh(dims_of(environment.world_size), environment, options);
  mesh->world()->barrier();
  const int64_t ready_ns = steady_now_ns();
  std::ofstream(folder / std::to_string(environment.rank)) << fmt::format(
      "{} {} {} {} {}\n",
      static_cast<double>(ready_ns - begin_ns) / 1e9,
      static_cast<double>(ready_ns - loaded_ns) / 1e9,
      entries_of("/proc/self/fd"),
      entries_of("/proc/self/task"),
      mesh->all().size());
  mesh->world()->barrier();
}

Start measure(int ranks, const fs::path& folder) {
  fs::create_directories(folder);
  SupervisorOptions options;
  options.nproc = ranks;
  options.command = {
      fs::read_symlink("/proc/self/exe").string(),
      "--rank",
      std::to_string(steady_now_ns()),
      folder.string()};
  options.threads_per_rank = 1;
  bench::run_ranks(options, "start of ranks");
  Start worst;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(folder / std::to_string(rank));
    Start start;
    file >> start.all_s >> start.mesh_s >> start.descriptors >> start.threads >>
        start.groups;
    worst.all_s = std::max(worst.all_s, start.all_s);
    worst.mesh_s = std::max(worst.mesh_s, start.mesh_s);
    worst.descriptors = std::max(worst.descriptors, start.descriptors);
    worst.threads = std::max(worst.threads, start.threads);
    worst.groups = std::max(worst.groups, start.groups);
  }
  return worst;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "--rank") {
    run_rank(std::stoll(arguments[1]), arguments[2]);
    return 0;
  }
  std::vector<int> ranks;
  for (const std::string& text : arguments)
    ranks.push_back(bench::positive_number("ranks", text));
  if (ranks.empty())
    ranks = {2, 4, 8, 16, 32, 64, 128};
  const fs::path folder =
      fs::temp_directory_path() / fmt::format("brigade-start-{}", ::getpid());
  fmt::print(
      "{:>6} {:<22} {:>8} {:>8} {:>12} {:>8} {:>7}\n",
      "ranks",
      "layout",
      "start s",
      "mesh s",
      "descriptors",
      "threads",
      "groups");
  for (const int each : ranks) {
    const Start start = measure(each, folder / std::to_string(each));
    fmt::print(
        "{:>6} {:<22} {:>8.2f} {:>8.2f} {:>12} {:>8} {:>7}\n",
        each,
        dims_of(each).product(),
        start.all_s,
        start.mesh_s,
        start.descriptors,
        start.threads,
        start.groups);
    std::fflush(stdout);
  }
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  return brigade::bench::exit_code_of([&] {
    return brigade::run({argv + 1, argv + argc});
  });
}
