// Flags a loss that jumps out of its recent curve.
//
// PURE.
#pragma once

#include <deque>
#include <optional>

namespace brigade {

// Holds each loss against the mean of the last kWindow: a spike is more than
// `limit` standard deviations above it. Spikes stay out of the mean, unless
// they go on for longer than a window takes.
class LossSpikes {
 public:
  static constexpr size_t kWindow = 100;
  static constexpr size_t kLeast = 20;  // losses, before any is judged

  // limit: standard deviations; 0: nothing is flagged.
  explicit LossSpikes(double limit) : limit_(limit) {}

  // The standard deviations above the mean, where that is a spike. A loss that
  // is not finite is none, and is left out.
  std::optional<double> add(double loss);

 private:
  double limit_;
  std::deque<double> losses_;
  size_t spikes_in_a_row_ = 0;
};

}  // namespace brigade
