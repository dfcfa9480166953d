// A loss as it travels between micro-batches, ranks and evaluations: a sum over
// tokens, and how many. Sums add up whatever the split; means of means do not.
#pragma once

#include <cstdint>

namespace brigade {

// A sum over predicted tokens.
struct TokenLoss {
  double nats = 0;
  int64_t tokens = 0;
  // NaN where no token counts.
  double mean() const { return nats / static_cast<double>(tokens); }
};

}  // namespace brigade
