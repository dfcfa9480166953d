// An optimizer's step in backward: a bucket's parameters are stepped as soon as
// its gradients are reduced, while backward goes on. Made from an optimizer by
// step_in_backward.h.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace brigade {

class BucketStep {
 public:
  virtual ~BucketStep() = default;
  // One optimizer step begins, in which each parameter comes once.
  virtual void begin() = 0;
  // Steps `params` (of GradSync::params(), in memory order) of a segment, whose
  // gradients are reduced and handed over, and drops their gradients. On the
  // thread of backward, which no longer reads them, or on the one that waits for
  // the step's end.
  virtual void step(size_t segment, const std::vector<int>& params) = 0;
};
// Null: the optimizer steps after backward.
using BucketStepPtr = std::shared_ptr<BucketStep>;

}  // namespace brigade
