#include "brigade/metrics/loss_spikes.h"

#include <algorithm>
#include <cmath>

namespace brigade {

std::optional<double> LossSpikes::add(double loss) {
  if (limit_ <= 0 || !std::isfinite(loss))
    return std::nullopt;
  std::optional<double> spike;
  if (losses_.size() >= kLeast) {
    double mean = 0;
    for (const double value : losses_)
      mean += value / static_cast<double>(losses_.size());
    double variance = 0;
    for (const double value : losses_)
      variance += (value - mean) * (value - mean) /
                  static_cast<double>(losses_.size() - 1);
    // Losses that repeat exactly have no deviation to be measured in.
    const double deviation =
        std::max(std::sqrt(variance), 1e-6 * std::abs(mean));
    const double score = (loss - mean) / deviation;
    if (score > limit_)
      spike = score;
  }
  spikes_in_a_row_ = spike ? spikes_in_a_row_ + 1 : 0;
  if (!spike || spikes_in_a_row_ > kLeast) {
    losses_.push_back(loss);
    if (losses_.size() > kWindow)
      losses_.pop_front();
  }
  return spike;
}

}  // namespace brigade
