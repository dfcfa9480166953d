#include "brigade/data_parallel/optimizer_groups.h"

#include "brigade/data_parallel/owned_runs.h"

namespace brigade {

std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules) {
  std::vector<OptimizerGroup> groups;
  for (const OwnedRun& run : cut_owned(sync, group_of)) {
    // A range of padding alone counts as group 0, which need not exist.
    if (run.group == kNoGroup || static_cast<size_t>(run.group) >= rules.size())
      continue;
    groups.push_back(
        {.name = run.name(sync),
         .weight = run.weight(sync),
         .main_grad = run.main_grad(sync),
         .rule = rules[static_cast<size_t>(run.group)],
         .param_group = run.group,
         .parts = parts_of(sync, run)});
  }
  return groups;
}

}  // namespace brigade
