// Which elements of a parameter a run of flat memory has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade {

// [begin, begin + numel) of the parameter, flat, are at `offset` of the run.
struct RunPart {
  int param = 0;  // its index among those that are stepped
  int64_t begin = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  size_t run = 0;  // the owned range of a segment, or an optimizer's group
};

}  // namespace brigade
