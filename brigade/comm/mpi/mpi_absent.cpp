// The backend "mpi" in a build without MPI.
#include "brigade/base/error.h"
#include "brigade/comm/mpi/mpi_communicator.h"

namespace brigade {
namespace {

[[noreturn]] void refuse() {
  throw ConfigError(
      "[comm] the backend \"mpi\" is not in this build: install libopenmpi-dev "
      "(or another MPI) and build with -DBRIGADE_MPI=ON");
}

}  // namespace

bool has_mpi() {
  return false;
}

void check_mpi(const LaunchEnvironment& /* environment */) {
  refuse();
}

CommunicatorPtr make_mpi_communicator(
    const StorePtr& /* store */,
    int /* rank */,
    int /* size */,
    CommunicatorOptions /* options */) {
  refuse();
}

void end_mpi() {}

}  // namespace brigade
