#pragma once

#include <set>

#include "brigade/sharding/sharded_weights.h"

namespace brigade::testing {

// How many units' weights have memory.
inline size_t whole_units(const ShardedWeights& weights) {
  std::set<int> units;
  for (const Param& param : weights.params()) {
    if (param.tensor.storage().nbytes() > 0)
      units.insert(param.unit);
  }
  return units.size();
}

}  // namespace brigade::testing
