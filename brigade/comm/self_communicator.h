// The communicator of a group of one: every collective is a local copy, or
// nothing. It exists so that no code asks whether there are other ranks.
#pragma once

#include "brigade/comm/communicator.h"

namespace brigade {

CommunicatorPtr make_self_communicator(CommunicatorOptions options = {});

}  // namespace brigade
