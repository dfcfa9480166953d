// The backends that move the bytes of process groups, and the only place where
// a group is made over one.
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

// The options that all groups of a mesh share; the same on every rank except
// for addresses.
struct BackendOptions {
  Backend backend = Backend::kGloo;
  GlooOptions gloo;  // where this rank's peers connect to
  // Makes the groups instead of make_communicator(), for a device that has no
  // backend here; empty: make_communicator() does. `store` is null in a group
  // of one.
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

// The device of the model's tensors on a rank of this backend: with NCCL the
// GPU of the rank's number on its host, else the CPU.
torch::Device device_of(Backend backend, const LaunchEnvironment& environment);

// Called before any group exists. Throws ConfigError if this build or machine
// lacks what the backend needs, or if the backend cannot work with ranks that
// were started in this way.
void check_backend(Backend backend, const LaunchEnvironment& environment);

// Joins a group: every member calls it with the same store, size and options,
// and with `rank`, its rank in the group. Size 1 is a communicator without
// peers and needs no store. Throws CommError when the members do not all arrive
// within options.timeout, ConfigError as check_backend() for the build, and
// UsageError for a group of several ranks without a store.
CommunicatorPtr make_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const BackendOptions& backend);

}  // namespace brigade
