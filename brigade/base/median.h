// Medians of values, which must not be empty.
//
// PURE.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "brigade/base/check.h"

namespace brigade {

// The median; for an even number the upper one of the two in the middle.
inline double upper_median(std::vector<double> values) {
  BRIGADE_ASSERT(!values.empty(), "the median of no values");
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The median; for an even number the mean of the two in the middle.
inline double median(std::vector<double> values) {
  BRIGADE_ASSERT(!values.empty(), "the median of no values");
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace brigade
