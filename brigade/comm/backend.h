// What moves the bytes of process groups, and the one place where a group is
// made over it.
//
// A new backend is a value in options/backend.h, a folder beside
// gloo/, and a case in make_communicator() and check_backend().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/store.h"
#include "brigade/launch/environment.h"
#include "brigade/options/backend.h"

namespace brigade {

// What the groups of a mesh share; the same on every rank but for addresses.
struct BackendOptions {
  Backend backend = Backend::kGloo;
  GlooOptions gloo;  // where this rank's peers connect to
  // Makes the groups in place of make_communicator(), for a device that has no
  // backend here; empty: the backend does. `store` is null in a group of one.
  std::function<CommunicatorPtr(
      const StorePtr& store,
      int rank,
      int size,
      const CommunicatorOptions& options)>
      make = {};
  // The host of each rank of the mesh; empty: all are on one host.
  std::vector<std::string> hosts;
  HierarchyChoice hierarchy = HierarchyChoice::kOff;
};

// Where a rank of this backend has the model's tensors: the GPU of its number
// on the host with NCCL, else the CPU.
torch::Device device_of(Backend backend, const LaunchEnvironment& environment);

// Before any group exists. Throws ConfigError where this build or machine lacks
// what the backend needs, or these ranks were started in a way that it cannot
// work with.
void check_backend(Backend backend, const LaunchEnvironment& environment);

// Joins a group: every member calls it with the same store, size and options
// but for `rank`, its rank in the group. Size 1 is a communicator without peers
// and needs no store. Throws CommError when the members do not all arrive
// within options.timeout, ConfigError as check_backend() for the build and for
// a group of several without a store.
CommunicatorPtr make_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const BackendOptions& backend);

}  // namespace brigade
