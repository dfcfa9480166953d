#include "tests/support/ranks_over_mpi.h"

#include <fmt/format.h>

#include <functional>
#include <stdexcept>
#include <utility>

#include "brigade/comm/backend.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/world.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade::testing {
namespace {

struct Ranks {
  LaunchEnvironment environment = read_environment(process_environment());
  StorePtr store = open_store(environment, kNever);
  int groups = 0;
};

Ranks& ranks() {
  static Ranks ranks;
  return ranks;
}

// The store of a run by `size` ranks, once all of them are there: threads start
// together, and a test's timeout is not for processes to come. Null where this
// process is none of them.
StorePtr meet(int size) {
  if (size > mpi_size())
    throw std::runtime_error(fmt::format(
        "{} ranks are needed, mpirun started {}", size, mpi_size()));
  StorePtr store = next_store();
  if (mpi_rank() >= size)
    return nullptr;
  const StorePtr start = store->with_prefix("start");
  start->set(std::to_string(mpi_rank()), "here");
  for (int rank = 0; rank < size; ++rank)
    start->get(std::to_string(rank));
  return store;
}

void run_over_mpi(
    int size,
    const std::function<void(CommunicatorPtr world)>& body,
    const RanksOptions& options) {
  const StorePtr store = meet(size);
  if (store == nullptr)
    return;
  const CommunicatorOptions communicator{
      .name = "world",
      .timeout = options.timeout,
      .check_collectives = options.check_collectives,
      .max_records = options.max_records};
  CommunicatorPtr world = size == 1 ? make_self_communicator(communicator)
                                    : make_communicator(
                                          store,
                                          mpi_rank(),
                                          size,
                                          communicator,
                                          {.backend = Backend::kMpi});
  options.first(*world);
  body(std::move(world));
}

void run_over_mpi_with_store(
    int size,
    const std::function<void(int rank, StorePtr store)>& body) {
  if (StorePtr store = meet(size))
    body(mpi_rank(), std::move(store));
}

}  // namespace

int mpi_rank() {
  return ranks().environment.rank;
}

int mpi_size() {
  return ranks().environment.world_size;
}

StorePtr next_store() {
  return ranks().store->with_prefix(fmt::format("group {}", ranks().groups++));
}

std::string from_first_rank(const std::string& text) {
  const StorePtr store = next_store();
  if (mpi_rank() == 0)
    store->set("text", text);
  return store->get("text");
}

CommunicatorPtr make_mpi_group(CommunicatorOptions options, int size) {
  const StorePtr store = next_store();
  return make_communicator(
      store,
      mpi_rank(),
      size == 0 ? mpi_size() : size,
      std::move(options),
      {.backend = Backend::kMpi});
}

void run_ranks_over_mpi() {
  set_rank_runner({run_over_mpi, run_over_mpi_with_store});
  // Every rank has to start MPI; the first run may be of some of them.
  make_mpi_group();
}

void wait_for_all_ranks() {
  const StorePtr store = ranks().store->with_prefix("ended");
  store->set(std::to_string(mpi_rank()), "yes");
  for (int rank = 0; rank < mpi_size(); ++rank)
    store->get(std::to_string(rank));
}

}  // namespace brigade::testing
