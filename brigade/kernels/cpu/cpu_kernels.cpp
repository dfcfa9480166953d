#include "brigade/kernels/cpu/cpu_kernels.h"

namespace brigade::ops {

bool CpuKernels::takes(torch::Device device, torch::ScalarType dtype) const {
  return device.is_cpu() &&
         (dtype == torch::kFloat || dtype == torch::kBFloat16);
}

const KernelSet& cpu_kernels() {
  static const CpuKernels kernels;
  return kernels;
}

}  // namespace brigade::ops
