// Messages between the ranks of a Gloo group, with one connection per
// direction. Used by the files of comm/ only.
//
// With a single connection the sending thread locks it while it writes to the
// socket. Gloo's I/O thread cannot read meanwhile and polls, on a processor
// that computes, and launching a receive waits for a message that is being
// read. So messages to higher ranks and to lower ones have different
// connections. c10d opens as many connections between two ranks as it has
// devices, and chooses one by the message's tag.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "brigade/comm/sums/group_messages.h"

namespace brigade {

using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooGroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// The number of connections: the group is made with the same device this many
// times.
constexpr int kGlooConnections = 2;

// close() closes this rank's connections in both directions, so that ranks
// waiting for it fail at once. (After a timeout Gloo closes those of one
// direction only.)
std::shared_ptr<MessageTransport> make_gloo_messages(GlooGroupPtr group);

}  // namespace brigade
