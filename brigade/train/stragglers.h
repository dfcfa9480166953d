// Which ranks compute longer than those that do the same work.
//
// PURE: times in, names of ranks out.
#pragma once

#include <cstddef>
#include <vector>

namespace brigade {

struct Straggler {
  int rank = 0;
  double ratio = 0;       // its time to its peers'
  bool is_alone = false;  // nobody does the same work: peers are all others
};

// Fed with windows of a few steps each. A rank is flagged after kWindows in a
// row in which it took kRatio times as long as the median of its peers, and may
// be flagged again once it was as fast as they are for as long.
class StragglerDetector {
 public:
  static constexpr int kSteps = 5;  // of a window, at best
  static constexpr int kWindows = 3;
  static constexpr double kRatio = 1.5;
  // Where a rank's work is like nobody else's, it is held against all others.
  static constexpr double kRatioOfUnlike = 2.5;

  // work_of_rank: ranks with the same number do the same work (a pipeline
  // stage's).
  explicit StragglerDetector(std::vector<int> work_of_rank);

  // busy_seconds: of each rank, the median of its steps in the window, waits
  // for other ranks left out. Returns who is flagged now.
  std::vector<Straggler> add_window(const std::vector<double>& busy_seconds);

 private:
  // Without saying whether it is slow.
  Straggler compare(size_t rank, const std::vector<double>& busy_seconds) const;

  std::vector<int> work_of_rank_;
  std::vector<int>
      slow_windows_;  // in a row; negative: fast ones, once flagged
};

}  // namespace brigade
