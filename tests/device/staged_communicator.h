// A communicator for the late device, built as NcclCommunicator is for GPUs:
// collectives have a stream, and so has each pair of ranks for its messages, in
// the order of the calls. Gloo moves the bytes, through the host.
#pragma once

#include "brigade/comm/backend.h"

namespace brigade::testing {

// The ordering that is left out, in tests that must then fail.
enum class Forgotten {
  kNothing,
  kProducer,  // a launch is not ordered behind the launching stream
  kConsumer,  // wait() does not order the waiting stream
};

// Groups over `store`, which must not be null where there is more than one
// rank.
BackendOptions staged_backend(Forgotten forgotten = Forgotten::kNothing);

}  // namespace brigade::testing
