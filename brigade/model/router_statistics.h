// What a rank's routers did with the tokens of a step.
//
// Filled in by the first run of each layer over a micro-batch, not where it is
// computed again; read and cleared between steps, by the same thread.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <optional>
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

// What routers note, and what they are balanced over; by layer of the whole
// model.
struct RouterRecord {
  std::map<int64_t, RouterStatistics> noted;
  // Whether RouterStatistics::learned is counted.
  bool counts_choices = false;
  // The shares of experts in the choices of a step's tokens, [E] on the model's
  // device; between steps replaced by those of the last one. Of a layer that is
  // not there experts count as used evenly. Empty: the balance loss is over
  // each sequence by itself.
  std::optional<std::map<int64_t, torch::Tensor>> shares;
};

}  // namespace brigade
