// Communicator over c10d's process groups: Gloo on the CPU.
//
// What Gloo lacks in libtorch 1.13, or does through copies, is made of messages
// from rank to rank (gloo_messages.h), straight from and into the tensors'
// memory, at the same number of bytes:
//   all_gather           the own chunk to each rank
//   reduce_scatter       each rank's chunk to it; the waiting thread adds them
//   all_reduce of bf16   both; between two ranks one message each way, and the
//                        waiting thread adds
// A thread of the communicator's own sends and waits, in the order of launches.
// bf16 is summed in float32 and rounded once. Broadcasts move it as bytes.
//
// A lost peer is noticed at once, unless one of its messages was half read or
// written: that one ends with the timeout.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade {

// Of the connections between ranks.
struct GlooOptions {
  // Network interface, "lo" for ranks on one machine; empty: `address`.
  std::string interface = "lo";
  // Numeric address of this host that its peers connect to.
  std::string address;
};

// Joins the group: every member calls it with the same store and size. Throws
// CommError when the members do not all arrive within options.timeout.
//
// Changes the process: where SIGPIPE has its default action, which ends the
// program, it is ignored from here on, so that writing to a lost peer's socket
// is a CommError. A program's own handler stays.
CommunicatorPtr make_gloo_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options = {},
    const GlooOptions& gloo = {});

}  // namespace brigade
