// Which tensors of a module lie in the same memory, so that one shows what is
// written to the other: weights tied by set_data().
#pragma once

#include <string>
#include <vector>

#include "brigade/param/state.h"

namespace brigade {

// For each of `tensors` the name of another one that has an element in common,
// or "". The same tensor under two names is one tensor.
std::vector<std::string> names_of_sharers(const std::vector<State>& tensors);

}  // namespace brigade
