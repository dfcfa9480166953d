#include "brigade/train/stragglers.h"

#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/median.h"

namespace brigade {

StragglerDetector::StragglerDetector(std::vector<int> work_of_rank)
    : work_of_rank_(std::move(work_of_rank)),
      slow_windows_(work_of_rank_.size(), 0) {}

Straggler StragglerDetector::compare(
    size_t rank,
    const std::vector<double>& busy_seconds) const {
  std::vector<double> same_work;
  std::vector<double> others;
  for (size_t other = 0; other < busy_seconds.size(); ++other) {
    if (other == rank)
      continue;
    others.push_back(busy_seconds[other]);
    if (work_of_rank_[other] == work_of_rank_[rank])
      same_work.push_back(busy_seconds[other]);
  }
  Straggler result{static_cast<int>(rank), 1, same_work.empty()};
  if (others.empty())
    return result;
  const double peers = upper_median(same_work.empty() ? others : same_work);
  if (peers > 0)
    result.ratio = busy_seconds[rank] / peers;
  return result;
}

std::vector<Straggler> StragglerDetector::add_window(
    const std::vector<double>& busy_seconds) {
  BRIGADE_ASSERT(
      busy_seconds.size() == work_of_rank_.size(),
      "{} times of {} ranks",
      busy_seconds.size(),
      work_of_rank_.size());
  std::vector<Straggler> flagged;
  for (size_t rank = 0; rank < busy_seconds.size(); ++rank) {
    int& windows = slow_windows_[rank];
    const Straggler compared = compare(rank, busy_seconds);
    const bool is_slow =
        compared.ratio >= (compared.is_alone ? kRatioOfUnlike : kRatio);
    const bool was_flagged = windows >= kWindows || windows < 0;
    if (was_flagged) {
      // Counts fast windows downwards, to 0 when it is like its peers again.
      if (is_slow)
        windows = kWindows;
      else
        windows = windows > 0 ? -kWindows + 1 : windows + 1;
      continue;
    }
    windows = is_slow ? windows + 1 : 0;
    if (windows == kWindows)
      flagged.push_back(compared);
  }
  return flagged;
}

}  // namespace brigade
