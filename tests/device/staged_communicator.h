// A communicator for the late device, as NcclCommunicator is one for GPUs:
// collectives on a stream of their own, the messages of two ranks on one of
// theirs, in the order of the calls; Gloo moves the bytes, through the host.
#pragma once

#include <memory>

#include "brigade/comm/backend.h"

namespace brigade::testing {

// What is left out, for tests that must then fail.
enum class Forgotten {
  kNothing,
  kProducer,  // a launch is not ordered behind the launching stream
  kConsumer,  // wait() does not order the waiting stream
};

// Groups over `store`, which must not be null where there is more than one
// rank.
BackendOptions staged_backend(Forgotten forgotten = Forgotten::kNothing);

}  // namespace brigade::testing
