// Checks that all ranks give the same description of the work that follows, one
// "name: value" per line.
#pragma once

#include <cstddef>
#include <string>

#include "brigade/comm/communicator.h"

namespace brigade {

// The first line in which two texts differ: its index and both lines.
struct LineDifference {
  size_t index = 0;
  std::string here = "nothing";
  std::string there = "nothing";
};

LineDifference first_line_difference(
    const std::string& here,
    const std::string& there);

// Collective, an all-gather of 16 bytes. Throws CommError on every rank if
// descriptions of `what` differ, naming the first line that does.
void check_same_on_ranks(
    const std::string& description,
    const std::string& what,
    Communicator& group);

}  // namespace brigade
