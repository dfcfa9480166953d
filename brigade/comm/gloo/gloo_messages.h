// Messages between the ranks of a Gloo group, each way over a connection of its
// own; for the files of comm/ only.
//
// Who sends writes to the socket and holds the connection meanwhile. Gloo's I/O
// thread cannot read then: it asks for what has come again and again, on a
// processor that somebody computes on, and a receive that is to be launched
// waits for a message that is being read. So messages to higher ranks and to
// lower ones go apart. c10d opens as many connections between two ranks as it
// is given devices, and takes one by the message's tag.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "brigade/comm/sums/group_messages.h"

namespace brigade {

using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooGroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Devices to give the group: this many times the same.
constexpr int kGlooConnections = 2;

// close() closes this rank's connections in both directions, so that ranks
// waiting for it fail at once. (After a timeout Gloo closes those of one
// direction only.)
std::shared_ptr<MessageTransport> make_gloo_messages(GlooGroupPtr group);

}  // namespace brigade
