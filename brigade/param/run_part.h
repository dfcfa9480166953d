// Which elements of a parameter a run of flat memory has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "brigade/ops/stochastic_rounding.h"

namespace brigade {

// [begin, begin + numel) of the parameter, flat, are at `offset` of the run.
struct RunPart {
  int param = 0;  // its index among those that are stepped
  int64_t begin = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  size_t run = 0;  // the owned range of a segment, or an optimizer's group
  // Of an optimizer's group: the parameter's key and where the elements stand in
  // it whole, so that random numbers are the same in every layout.
  ops::RandomBits bits = {};
};

}  // namespace brigade
