#include "tests/support/ranks_as_threads.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <sys/epoll.h>

#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
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

// What join_patiently() tells the others.
constexpr const char* kJoined = "joined";
constexpr const char* kTooLate = "too late";
constexpr const char* kFailed = "failed";
constexpr int kMostAttempts = 100;

CommunicatorPtr make_world(
    const StorePtr& store,
    int rank,
    int size,
    const RanksOptions& options) {
  const CommunicatorOptions communicator{
      .name = "world",
      .timeout = options.timeout,
      .check_collectives = options.check_collectives,
      .max_records = options.max_records};
  CommunicatorPtr world =
      size == 1 ? make_self_communicator(communicator)
                : make_gloo_communicator(store, rank, size, communicator);
  options.first(*world);
  return world;
}

}  // namespace

CommunicatorPtr join_patiently(
    const StorePtr& store,
    int rank,
    int size,
    const std::function<CommunicatorPtr(const StorePtr& store)>& make) {
  for (int attempt = 0;; ++attempt) {
    const StorePtr place =
        store->with_prefix("attempt " + std::to_string(attempt));
    const auto tell = [&](const std::string& what) {
      place->set("rank " + std::to_string(rank), what);
    };
    CommunicatorPtr group;
    std::string late;
    try {
      group = make(place->with_prefix("group"));
      tell(kJoined);
    } catch (const CommError& error) {
      late = error.what();
      tell(kTooLate);
    } catch (...) {
      tell(kFailed);
      throw;
    }
    bool have_all_joined = true;
    for (int peer = 0; peer < size; ++peer) {
      const std::string theirs = place->get("rank " + std::to_string(peer));
      if (theirs == kFailed)
        throw CommError("rank " + std::to_string(peer) + " could not join");
      have_all_joined = have_all_joined && theirs == kJoined;
    }
    if (have_all_joined)
      return group;
    if (attempt == kMostAttempts)
      throw CommError("no attempt to join went well; on this rank: " + late);
  }
}

void run_ranks_with_store(
    int size,
    const std::function<void(int rank, StorePtr store)>& body) {
  if (other_runner.run_with_store)
    return other_runner.run_with_store(size, body);
  const auto store = make_in_process_store(kNever);
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

std::chrono::milliseconds timeout_of_lost_ranks() {
  if (ranks_are_processes())
    return std::chrono::seconds(3);
  return kNever;
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
  run_ranks_with_store(size, [&](int rank, const StorePtr& store) {
    const auto make = [&](const StorePtr& place) {
      return make_world(place, rank, size, options);
    };
    // Without a timeout, trying again would mend nothing.
    body(
        options.timeout < kNever ? join_patiently(store, rank, size, make)
                                 : make(store));
  });
}

}  // namespace brigade::testing
