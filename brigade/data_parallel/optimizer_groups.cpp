#include "brigade/data_parallel/optimizer_groups.h"

#include <algorithm>

#include "brigade/data_parallel/owned_runs.h"

namespace brigade {

OptimizerGroups make_optimizer_groups(
    const GradSync& sync,
    const DecayRule& weight_decay) {
  std::vector<double> decays;  // by group
  std::vector<int> group_of;
  for (const Param& param : sync.params()) {
    const double decay = weight_decay(param);
    const auto found = std::find(decays.begin(), decays.end(), decay);
    group_of.push_back(static_cast<int>(found - decays.begin()));
    if (found == decays.end())
      decays.push_back(decay);
  }
  OptimizerGroups result;
  result.places.resize(sync.params().size());
  for (const OwnedRun& run : cut_owned(sync, group_of)) {
    for (const RunPart& part : parts_of(sync, run))
      result.places.at(static_cast<size_t>(part.param)) = {
          result.groups.size(), part.offset, part.begin, part.numel};
    result.groups.push_back(
        {run.name(sync),
         run.weight(sync),
         run.main_grad(sync),
         decays.at(static_cast<size_t>(run.group))});
  }
  return result;
}

}  // namespace brigade
