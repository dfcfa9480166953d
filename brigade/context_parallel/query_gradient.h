// The gradient of this rank's queries by the blocks of others. The first step
// that has a part writes it into the sum's memory, later ones add theirs.
//
//   take(queries)         memory for a step to write its part into
//   give(part, queries)   hands it back
//   sum()                 what all steps gave so far
#pragma once

#include <vector>

#include "brigade/context_parallel/ring_call.h"

namespace brigade {

// Sets to zero the tokens of x, [B, T, ..], outside `range`.
void clear_outside(const torch::Tensor& x, const TokenRange& range);

class QueryGradient {
 public:
  // `q` gives the sizes, except the number of tokens; `dtype` is that of the
  // parts.
  QueryGradient(
      const RingCall& call,
      const torch::Tensor& q,
      torch::ScalarType dtype);

  torch::Tensor take(const TokenRange& queries);
  void give(const torch::Tensor& part, const TokenRange& queries);
  ops::QueryGradientPart sum() const { return {sum_, range_.begin}; }

 private:
  TokenRange within(const TokenRange& queries) const {
    return {queries.begin - range_.begin, queries.end - range_.begin};
  }

  torch::TensorOptions options_;
  std::vector<int64_t> sizes_;
  TokenRange range_;   // of the queries that see some other rank's keys
  torch::Tensor sum_;  // [B, those, H, D]; undefined: no part yet
  bool is_in_place_ = false;
};

}  // namespace brigade
