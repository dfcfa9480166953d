// The ranks that mpirun started, for the tests of this folder.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade::testing {

int mpi_rank();
int mpi_size();

// Returns when every rank has called it.
void wait_for_all_ranks();

// A part of the ranks' store that nobody has used; every rank calls it as often
// as the others.
StorePtr next_store();

// The group of the first `size` ranks, 0: of all. By all its members.
CommunicatorPtr make_mpi_group(CommunicatorOptions options = {}, int size = 0);

}  // namespace brigade::testing
