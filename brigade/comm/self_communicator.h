// The communicator of a group of one: every collective is a local copy or does
// nothing. With it callers need not ask whether there are other ranks.
// all_reduce_as_bf16() rounds here too, as in any group.
#pragma once

#include "brigade/comm/communicator.h"

namespace brigade {

// rank() is 0 and size() is 1; options set the name and what is recorded.
CommunicatorPtr make_self_communicator(CommunicatorOptions options = {});

}  // namespace brigade
