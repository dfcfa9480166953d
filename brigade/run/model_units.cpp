#include "brigade/run/model_units.h"

#include <algorithm>

namespace brigade {

std::map<ModelUnit, int> divide_into_units(
    const std::vector<ParameterRow>& rows,
    const ModelPart& part,
    int zero_stage) {
  const bool is_left_readable = zero_stage < 3 && part.is_first;
  const bool are_joined =
      !is_left_readable && std::any_of(rows.begin(), rows.end(), [](auto& row) {
        return !row.tied_head.empty();
      });
  const ModelUnit embedding{Place::kEmbedding};
  const ModelUnit head{Place::kHead};
  std::map<ModelUnit, int> units;
  for (const ParameterRow& row : rows) {
    const ModelUnit use =
        are_joined && row.unit() == head ? embedding : row.unit();
    units.emplace(use, static_cast<int>(units.size()));
  }
  if (are_joined)
    units[head] = units.at(embedding);
  return units;
}

}  // namespace brigade
