#include "brigade/train/weight_units.h"

#include <algorithm>

namespace brigade {

WeightUnits divide_into_units(const std::vector<ParameterRow>& rows) {
  const bool is_tied = std::any_of(rows.begin(), rows.end(), [](auto& row) {
    return !row.tied_head.empty();
  });
  const ModelUnit embedding{Place::kEmbedding};
  const ModelUnit head{Place::kHead};
  WeightUnits units;
  for (const ParameterRow& row : rows) {
    const ModelUnit use =
        is_tied && row.unit() == head ? embedding : row.unit();
    const int next = static_cast<int>(units.of_use.size());
    units.of_row.push_back(units.of_use.emplace(use, next).first->second);
  }
  if (is_tied)
    units.of_use[head] = units.of_use.at(embedding);
  return units;
}

}  // namespace brigade
