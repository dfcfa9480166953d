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

// What one layer's router did.
struct RouterStatistics {
  // How often each expert was chosen by this rank's tokens, and how many of
  // these choices it had no room for. Counted on the first of the ranks of tp,
  // which share tokens.
  std::vector<int64_t> chosen;
  int64_t dropped = 0;
  // On the model's device: squares of the router's weight, and the sum of the
  // weights that tokens gave to experts, which is not finite where one is not.
  torch::Tensor squares;
  // See `squares`.
  torch::Tensor given;
  // int64 [E], there too: choices of each expert by those of this rank's tokens
  // that have a loss, counted as `chosen` are. Undefined where nobody asks.
  torch::Tensor learned;
};

// By layer of the whole model.
using RouterStatisticsByLayer = std::map<int64_t, RouterStatistics>;

// The shares of experts in the choices of a step's tokens, [E] on the model's
// device, by layer; between steps replaced by those of the last one.
using ExpertSharesByLayer = std::map<int64_t, torch::Tensor>;

}  // namespace brigade
