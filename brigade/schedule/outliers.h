// Which of several values are no company for the others: of groups that train
// apart, whose changes a mean should not have.
//
// PURE.
#pragma once

#include <vector>

namespace brigade {

// By value (a norm, not negative): whether it is not finite, or above `limit`
// times the median of the others that are finite. A value without such others
// is none.
std::vector<bool> find_outliers(const std::vector<double>& norms, double limit);

}  // namespace brigade
