#include "brigade/comm/backend.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/mpi/mpi_communicator.h"
#include "brigade/comm/nccl/nccl_communicator.h"
#include "brigade/comm/self_communicator.h"

namespace brigade {

void check_backend(Backend backend, const LaunchEnvironment& environment) {
  switch (backend) {
    case Backend::kGloo:
      return;
    case Backend::kNccl:
      return check_nccl(environment);
    case Backend::kMpi:
      return check_mpi(environment);
  }
}

torch::Device device_of(Backend backend, const LaunchEnvironment& environment) {
  if (backend != Backend::kNccl)
    return torch::kCPU;
  return {
      torch::kCUDA, static_cast<torch::DeviceIndex>(environment.local_rank)};
}

CommunicatorPtr make_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const BackendOptions& backend) {
  if (backend.make)
    return backend.make(store, rank, size, options);
  if (size == 1)
    return make_self_communicator(std::move(options));
  if (store == nullptr) {
    throw UsageError(fmt::format(
        "[comm] group '{}' of {} ranks was given no store to meet at; make one "
        "by make_tcp_store() or make_file_store()",
        options.name,
        size));
  }
  switch (backend.backend) {
    case Backend::kGloo:
      return make_gloo_communicator(
          store, rank, size, std::move(options), backend.gloo);
    case Backend::kNccl:
      return make_nccl_communicator(
          store, rank, size, std::move(options), backend.gloo);
    case Backend::kMpi:
      return make_mpi_communicator(store, rank, size, std::move(options));
  }
  BRIGADE_ASSERT(false, "backend {}", static_cast<int>(backend.backend));
}

}  // namespace brigade
