// The valid name that the user most likely meant.
//
// PURE.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brigade {

// Edits (insert, delete, replace, swap neighbours) between two names, blind to
// case, '_' and '-'.
int edit_distance(std::string_view a, std::string_view b);

// Index of the candidate nearest to `name`, the first of equals; candidates
// must not be empty. A name contained in the other counts as near, and so do
// initials (lr: learning_rate).
size_t nearest_name(
    std::string_view name,
    const std::vector<std::string>& candidates);

}  // namespace brigade
