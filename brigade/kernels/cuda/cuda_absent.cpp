// Takes the place of this folder's other files in a build without CUDA.
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

const KernelSet* cuda_kernels() {
  return nullptr;
}

}  // namespace brigade::ops
