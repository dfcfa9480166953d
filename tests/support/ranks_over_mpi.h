// The ranks that mpirun started: processes in place of threads.
#pragma once

#include <string>

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade::testing {

int mpi_rank();
int mpi_size();

// From here on run_ranks() and run_ranks_with_store() run on these processes,
// each of which calls them as often as the others: the first ones are the
// ranks, and a process that is none does nothing. Starts MPI on all of them.
void run_ranks_over_mpi();

// Returns when every rank has called it.
void wait_for_all_ranks();

// A part of the ranks' store that nobody has used; every rank calls it as often
// as the others.
StorePtr next_store();
// What rank 0 says; every rank calls it as often as the others.
std::string from_first_rank(const std::string& text);

// The group of the first `size` ranks, 0: of all. By all its members.
CommunicatorPtr make_mpi_group(CommunicatorOptions options = {}, int size = 0);

}  // namespace brigade::testing
