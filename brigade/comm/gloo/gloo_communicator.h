// Communicator over c10d's process groups: Gloo on the CPU.
//
// Collectives that Gloo lacks in libtorch 1.13, or does through copies, are
// composed of messages (comm/sums/composed_communicator.h), with the same
// number of bytes. bf16 is summed in float32 and rounded once; broadcasts move
// it as bytes.
//
// A lost peer is noticed at once, unless one of its messages was half read or
// written: that message ends with the timeout.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade {

// The addresses by which ranks connect to one another.
struct GlooOptions {
  // Network interface, "lo" for ranks on one machine; empty: `address`.
  std::string interface = "lo";
  // The numeric address of this host that its peers connect to.
  std::string address;
};

// Joins the group: every member calls it with the same store and size. Throws
// CommError if not all members arrive within options.timeout.
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
