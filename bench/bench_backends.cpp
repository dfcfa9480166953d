// How fast are collectives over each backend, on the same ranks in one run?
//
//   mpirun -n 2 build/release/bench_backends [MiB of the largest]
//
// Rounds of the backends take turns, so that a loud machine is loud to both.
// Per size: the median time of a rank's all-reduce over Gloo and over MPI, the
// rate of each (bytes of the tensor by time), and MPI's rate by Gloo's.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/median.h"
#include "brigade/comm/backend.h"
#include "brigade/comm/mpi/mpi_communicator.h"
#include "brigade/comm/world.h"
#include "brigade/launch/network.h"

namespace brigade {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;

double seconds_of(Communicator& group, torch::Tensor& tensor, int repeats) {
  group.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < repeats; ++i)
    group.all_reduce(tensor)->wait();
  return std::chrono::duration<double>(Clock::now() - begin).count() / repeats;
}

void measure(
    const std::vector<CommunicatorPtr>& groups,
    int64_t bytes,
    torch::ScalarType dtype) {
  auto tensor = torch::zeros(
      {bytes / static_cast<int64_t>(c10::elementSize(dtype))}, dtype);
  const int repeats = bytes >= (1 << 20) ? 1 : 20;
  std::vector<std::vector<double>> times(groups.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < groups.size(); ++i)
      times[i].push_back(seconds_of(*groups[i], tensor, repeats));
  }
  if (groups[0]->rank() != 0)
    return;
  fmt::print("{:>10} {:<9}", bytes >> 10, c10::toString(dtype));
  for (const auto& seconds : times)
    fmt::print(
        " {:>10.3f} ms {:>6.2f} GB/s",
        median(seconds) * 1e3,
        static_cast<double>(bytes) / median(seconds) / 1e9);
  if (times.size() == 2)
    fmt::print(" {:>6.2f}", median(times[0]) / median(times[1]));
  fmt::print("\n");
  std::fflush(stdout);
}

void run(int64_t largest_bytes) {
  at::set_num_threads(1);
  const auto environment = read_environment(process_environment());
  const auto timeout = std::chrono::minutes(2);
  const auto store = open_store(environment, timeout);
  const PeerAddress address = peer_address(environment);
  std::vector<CommunicatorPtr> groups;
  for (const Backend backend : {Backend::kGloo, Backend::kMpi}) {
    if (backend == Backend::kMpi && !has_mpi())
      continue;
    check_backend(backend, environment);
    groups.push_back(make_communicator(
        store->with_prefix(to_string(backend)),
        environment.rank,
        environment.world_size,
        {.name = to_string(backend), .timeout = timeout},
        {.backend = backend,
         .gloo = {
             .interface = address.interface, .address = address.address}}));
  }
  if (environment.rank == 0) {
    fmt::print("all_reduce, {} ranks\n", environment.world_size);
    fmt::print("{:>10} {:<9}", "KiB", "dtype");
    for (const auto& group : groups)
      fmt::print(" {:>25}", group->name());
    fmt::print(" {:>6}\n", "ratio");
  }
  for (int64_t bytes = 4 << 10; bytes <= largest_bytes; bytes *= 4)
    measure(groups, bytes, torch::kFloat);
  measure(groups, 1 << 20, torch::kBFloat16);
  measure(groups, largest_bytes / 2, torch::kBFloat16);
}

}  // namespace
}  // namespace brigade

int main(int argc, char** argv) {
  try {
    brigade::run(int64_t{argc > 1 ? std::atoi(argv[1]) : 64} << 20);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
