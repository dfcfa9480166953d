// Communicator over c10d's process groups: Gloo on the CPU.
//
// What Gloo lacks in libtorch 1.13 is composed from what it has, at the same
// number of bytes:
//   reduce_scatter        all_to_all, then a local sum in rank order
//   all_reduce of bf16    that, then all_gather: n(R-1)/R + n(R-1)/R bytes;
//   summed
//                         in fp32 and rounded once
// Other collectives move bf16 as bytes. Composed operations run on a thread of
// the communicator's own, in launch order, and gather through a second process
// group, so that their second half cannot be confused with a later launch.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/comm/store.h"

namespace brigade {

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
