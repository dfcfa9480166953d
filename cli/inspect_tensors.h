// A list of tensors on the terminal: how much there is in all, then one line
// for those that differ only in the number of their layer.
#pragma once

#include <vector>

#include "brigade/run/stored_checkpoint.h"

namespace brigade::cli {

// list_all: a line for each tensor.
void print_tensors(const std::vector<CheckpointTensor>& tensors, bool list_all);

}  // namespace brigade::cli
