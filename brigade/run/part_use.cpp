#include "brigade/run/part_use.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {

std::vector<PartUse> count_part_use(
    const TrainConfig& config,
    const TrainingData& data,
    int64_t steps,
    int64_t samples) {
  if (!data.schedule || data.parts.empty())
    return {};
  const int64_t seq_length = config.training.seq_length;
  const int64_t steps_left = std::max<int64_t>(
      0, last_step(config, steps, samples * seq_length) - steps);
  const int64_t last =
      samples + steps_left * (tokens_per_step(config) / seq_length);
  const auto seen = data.schedule->counts(static_cast<uint64_t>(samples));
  const auto in_all = data.schedule->counts(static_cast<uint64_t>(last));
  std::vector<PartUse> uses;
  for (size_t i = 0; i < data.parts.size(); ++i)
    uses.push_back(
        {.path = data.parts[i].path,
         .windows = data.parts[i].training_windows,
         .seen = seen[i],
         .in_all = in_all[i]});
  return uses;
}

std::string describe(const PartUse& use) {
  const auto epochs = [&](uint64_t windows) {
    return static_cast<double>(windows) /
           static_cast<double>(std::max<uint64_t>(1, use.windows));
  };
  return fmt::format(
      "{}: {} windows seen ({:.2f} epochs), {} in the whole run ({:.2f})",
      use.path,
      use.seen,
      epochs(use.seen),
      use.in_all,
      epochs(use.in_all));
}

}  // namespace brigade
