// Communicator over c10d's process groups: Gloo on the CPU.
//
// What Gloo lacks in libtorch 1.13, or does through copies, is made of messages
// from rank to rank (gloo_messages.h), straight from and into the tensors'
// memory, at the same number of bytes:
//   all_gather           the own chunk to each rank
//   reduce_scatter       each rank's chunk to it, summed by who waits
//   all_reduce of bf16   both; between two ranks one message each way, summed
//                        by who waits
// A thread of the communicator's own sends and waits, in the order of launches.
// bf16 is summed in float32 and rounded once. Broadcasts move it as bytes.
//
// A peer that is gone is noticed at once, unless a message of its was half
// through: Gloo tells that to the messages that wait, not to the one that it
// reads or writes, which ends with the timeout.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade {

// Of the connections between ranks.
struct GlooOptions {
  // Network interface, "lo" for ranks on one machine; empty: the one that the
  // host's name resolves to.
  std::string interface = "lo";
};

// Joins the group: every member calls it with the same store and size. Throws
// CommError when the members do not all arrive within options.timeout.
// Ignores SIGPIPE in this process where nothing handles it: a lost peer is a
// CommError.
CommunicatorPtr make_gloo_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options = {},
    const GlooOptions& gloo = {});

}  // namespace brigade
