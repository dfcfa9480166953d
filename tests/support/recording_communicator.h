// A communicator without peers that answers as if they all did what this rank
// does: for one rank of any layout, alone, on a device whose tensors have no
// values (meta).
//
// Tensors of its device are left as they are. Values on the CPU are combined
// with as many copies of themselves as there are peers, but for uneven rows.
// Every launch is in records(), as with other communicators.
#pragma once

#include <atomic>
#include <memory>

#include "brigade/comm/backend.h"

namespace brigade::testing {

// What became of the launches of all groups of a mesh, on tensors of the
// device.
struct LaunchLedger {
  std::atomic<int64_t> launches{0};
  std::atomic<int64_t> waited{0};          // at least once
  std::atomic<int64_t> waited_on_host{0};  // which holds the host up
};
using LaunchLedgerPtr = std::shared_ptr<LaunchLedger>;

// The backend of a mesh that needs no store.
BackendOptions recording_backend(LaunchLedgerPtr ledger);

}  // namespace brigade::testing
