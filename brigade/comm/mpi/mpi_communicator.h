// Communicator over MPI, for networks that Gloo's TCP does not use: InfiniBand,
// Omni-Path, shared memory.
//
//   all_reduce          of a few KiB, broadcast, all_gather, all_to_all,
//                       barrier: MPI's own non-blocking collectives
//   all_reduce          of more: comm/sums/chunk_exchange.h
//   everything else     messages (comm/sums/composed_communicator.h)
//
// MPI has no threads of its own that would progress launched operations. The
// thread that waits does it, or, while none waits, a thread of the communicator
// (for collectives) or of the process (for sends and receives). MPI is called
// by one thread at a time (MPI_THREAD_SERIALIZED).
//
// Usually mpirun notices a lost rank first, and ends all others. A deadline
// that passes, or an error that MPI returns, is thrown as CommError.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"
#include "brigade/launch/environment.h"

namespace brigade {

// Whether this build has MPI.
bool has_mpi();

// Throws ConfigError if this build has no MPI, or if MPI would not find these
// ranks: they must be started by its own launcher. Does not start MPI.
void check_mpi(const LaunchEnvironment& environment);

// Joins the group: every member calls it with the same store, size and options.
// options.members are ranks of MPI_COMM_WORLD; empty: the first ones. The first
// call in a process starts MPI, which every rank of MPI_COMM_WORLD must do; MPI
// ends with the process. Throws CommError if not all members arrive within
// options.timeout, ConfigError as check_mpi() and if MPI was started without
// support for threads.
CommunicatorPtr make_mpi_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options = {});

// Ends MPI if this process started it. Called by programs that end by _exit();
// exit() does it by itself.
void end_mpi();

}  // namespace brigade
