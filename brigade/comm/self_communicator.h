// The communicator of a group of one: every collective is a local copy, or
// nothing. It exists so that no code asks whether there are other ranks.
#pragma once

#include "brigade/comm/communicator.h"

namespace brigade {

// rank() is 0 and size() is 1; options give the name and what is recorded.
CommunicatorPtr make_self_communicator(CommunicatorOptions options = {});

}  // namespace brigade
