#include "brigade/schedule/outliers.h"

#include <cmath>
#include <cstddef>

#include "brigade/base/median.h"

namespace brigade {

std::vector<bool> find_outliers(
    const std::vector<double>& norms,
    double limit) {
  std::vector<bool> is_outlier;
  for (size_t i = 0; i < norms.size(); ++i) {
    std::vector<double> others;
    for (size_t k = 0; k < norms.size(); ++k) {
      if (k != i && std::isfinite(norms[k]) && norms[k] > 0)
        others.push_back(norms[k]);
    }
    is_outlier.push_back(
        !std::isfinite(norms[i]) ||
        (!others.empty() && norms[i] > limit * median(others)));
  }
  return is_outlier;
}

}  // namespace brigade
