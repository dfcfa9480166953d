// Equal parts of a tensor.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "brigade/checkpoint/shard_spec.h"

namespace brigade::testing {

// Part `index` of `count` along `dim`, as tensor parallel cuts.
inline ShardSpec even_shard(
    std::vector<int64_t> full_shape,
    int64_t dim,
    int64_t index,
    int64_t count) {
  ShardSpec spec = whole_tensor(std::move(full_shape));
  const auto at = static_cast<size_t>(dim);
  const int64_t part = spec.full_shape.at(at) / count;
  spec.ranges[at] = {index * part, (index + 1) * part};
  return spec;
}

}  // namespace brigade::testing
