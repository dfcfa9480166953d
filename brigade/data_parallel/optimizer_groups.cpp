#include "brigade/data_parallel/optimizer_groups.h"

#include "brigade/data_parallel/owned_runs.h"

namespace brigade {

std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<double>& weight_decay) {
  std::vector<OptimizerGroup> groups;
  for (const OwnedRun& run : cut_owned(sync, group_of)) {
    // A range of padding alone counts as group 0, which need not exist.
    if (run.group == kNoGroup ||
        static_cast<size_t>(run.group) >= weight_decay.size())
      continue;
    groups.push_back(
        {.name = run.name(sync),
         .weight = run.weight(sync),
         .main_grad = run.main_grad(sync),
         .weight_decay = weight_decay[static_cast<size_t>(run.group)],
         .param_group = run.group});
  }
  return groups;
}

}  // namespace brigade
