// The GPUs of a host, as a rank there sees them.
//
// PURE.
#pragma once

#include <string>

namespace brigade {

struct Gpus {
  int count = 0;
  // Why there are none and what to do about it; empty: there are some.
  std::string missing =
      "this build is for CPUs; build against a libtorch with CUDA "
      "(scripts/build_cuda.sh, docs/gpu.md)";
};

// What a host that cannot be asked may have, with this build: as many as are
// needed, or none.
Gpus gpus_elsewhere();

}  // namespace brigade
