// What a rank's routers did with the tokens of a step.
//
// Filled in by the first run of each layer over a micro-batch, not where it is
// computed again; read and cleared between steps, by the same thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <vector>

namespace brigade {

// Of one layer.
struct RouterStatistics {
  // Rows that each expert got of this rank's tokens. Of the ranks of tp, which
  // share tokens, the first counts.
  std::vector<int64_t> rows;
  // On the model's device: squares of the router's weight, and the sum of the
  // weights that tokens gave to experts, which is not finite where one is not.
  torch::Tensor squares;
  // See `squares`.
  torch::Tensor given;
};

// By layer of the whole model.
using RouterStatisticsByLayer = std::map<int64_t, RouterStatistics>;

}  // namespace brigade
