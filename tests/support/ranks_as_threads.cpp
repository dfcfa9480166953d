#include "tests/support/ranks_as_threads.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/epoll.h>

#include <barrier>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/self_communicator.h"

// Gloo's event loop leaves out a socket whose lock another thread holds, and at
// once asks for events again (gloo/transport/tcp/pair.cc, handleEvents()). With
// more ranks than processors that thread often waits for the very processor:
// six layouts of four ranks on two processors asked 13 million times, for 126
// thousand messages. Yielding first, they ask 28 thousand times. (This
// definition comes before the C library's for Gloo too. ThreadSanitizer has one
// of its own.)
#ifndef __SANITIZE_THREAD__
extern "C" int
epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  ::sched_yield();
  return ::epoll_pwait(epoll, events, most, timeout_ms, nullptr);
}
#endif

namespace brigade::testing {

namespace {

RankRunner other_runner;

}  // namespace

void run_ranks_with_store(
    int size,
    const std::function<void(int rank, StorePtr store)>& body) {
  if (other_runner.run_with_store)
    return other_runner.run_with_store(size, body);
  const auto store = make_in_process_store(std::chrono::seconds(30));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(rank, store);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  std::exception_ptr first;
  for (int rank = 0; rank < size; ++rank) {
    const auto& error = errors[static_cast<size_t>(rank)];
    if (!error)
      continue;
    if (!first) {
      first = error;
      continue;
    }
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& other) {
      std::fprintf(stderr, "rank %d: %s\n", rank, other.what());
    }
  }
  if (first)
    std::rethrow_exception(first);
}

void set_rank_runner(RankRunner runner) {
  other_runner = std::move(runner);
}

bool ranks_are_processes() {
  return other_runner.run != nullptr;
}

CommunicatorPtr make_world_of_one() {
  return make_self_communicator({.name = "world", .max_records = 100000});
}

void run_ranks(
    int size,
    const std::function<void(CommunicatorPtr world)>& body,
    RanksOptions options) {
  if (other_runner.run)
    return other_runner.run(size, body, options);
  // A rank that leaves before the others have connected would fail them.
  std::barrier connected(size);
  run_ranks_with_store(size, [&](int rank, const StorePtr& store) {
    CommunicatorOptions communicator{
        .name = "world",
        .timeout = options.timeout,
        .check_collectives = options.check_collectives,
        .max_records = options.max_records};
    if (size == 1) {
      body(make_self_communicator(communicator));
      return;
    }
    CommunicatorPtr world;
    try {
      world = make_gloo_communicator(store, rank, size, communicator);
    } catch (...) {
      connected.arrive_and_drop();
      throw;
    }
    connected.arrive_and_wait();
    body(std::move(world));
  });
}

}  // namespace brigade::testing
