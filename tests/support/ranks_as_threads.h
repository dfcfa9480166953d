// Ranks as threads of one process: a world of Gloo communicators on loopback
// for fast tests.
#pragma once

#include <chrono>
#include <functional>

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade::testing {

// A test that waits for it exceeds the time that a test may take.
inline constexpr std::chrono::hours kNever{24};

struct RanksOptions {
  bool check_collectives = true;
  std::chrono::milliseconds timeout{kNever};
  int64_t max_records = 100000;
  // What the ranks do before the body, which has to go well within the timeout.
  std::function<void(Communicator& world)> first = [](Communicator&) {};
};

// Makes a rank's communicator, by `make` in the store that it is given, and
// returns it once every rank has its own. A timeout is for what a test then
// launches: where a busy machine exceeded it here, all ranks do it again.
CommunicatorPtr join_patiently(
    const StorePtr& store,
    int rank,
    int size,
    const std::function<CommunicatorPtr(const StorePtr& store)>& make);

// Runs body once per rank, each on its own thread with a communicator of
// `size` members (a SelfCommunicator for 1) and one ATen thread, and joins
// them. The first rank's exception is rethrown, the others' are printed.
void run_ranks(
    int size,
    const std::function<void(CommunicatorPtr world)>& body,
    RanksOptions options = {});

// What run_ranks() and run_ranks_with_store() do where ranks are processes.
struct RankRunner {
  std::function<void(
      int size,
      const std::function<void(CommunicatorPtr world)>& body,
      const RanksOptions& options)>
      run;
  std::function<
      void(int size, const std::function<void(int rank, StorePtr store)>& body)>
      run_with_store;
};
// Has `runner` run ranks in place of threads, for the rest of the process.
void set_rank_runner(RankRunner runner);

// Whether set_rank_runner() was called.
bool ranks_are_processes();

// The timeout of a group that a rank leaves: Gloo's other ranks notice it at
// once, MPI's after the timeout.
std::chrono::milliseconds timeout_of_lost_ranks();

// A communicator without peers.
CommunicatorPtr make_world_of_one();

// run_ranks() with the store, for tests that make groups of their own.
void run_ranks_with_store(
    int size,
    const std::function<void(int rank, StorePtr store)>& body);

}  // namespace brigade::testing
