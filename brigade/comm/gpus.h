// What there is of CUDA on this host. The only file that calls CUDA itself.
#pragma once

#include <torch/types.h>

#include "brigade/launch/environment.h"
#include "brigade/topology/gpus.h"

namespace brigade {

// Those that this process may use. Does not throw: a machine without a driver
// has none.
Gpus find_gpus();

// Each rank trains on the GPU of its number on the host. Throws ConfigError
// where there is none, or none for this rank.
void check_gpus(const Gpus& gpus, const LaunchEnvironment& environment);

// What libtorch holds of this device for this process, in 1e9 bytes; 0 for a
// device that is no GPU.
double reserved_gpu_memory_gb(torch::Device device);

// As the driver calls it; empty for a device that is no GPU.
std::string gpu_name(torch::Device device);

}  // namespace brigade
