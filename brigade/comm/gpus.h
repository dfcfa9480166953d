// The CUDA devices of this host. The only file that calls CUDA itself.
#pragma once

#include <torch/types.h>

#include "brigade/launch/environment.h"
#include "brigade/topology/gpus.h"

namespace brigade {

// The GPUs that this process may use. Does not throw: a machine without a
// driver has none.
Gpus find_gpus();

// Throws ConfigError if there is no GPU, or none for this rank: each rank
// trains on the GPU of its number on the host.
void check_gpus(const Gpus& gpus, const LaunchEnvironment& environment);

// The device memory that libtorch holds for this process, in 1e9 bytes; 0 if it
// is no GPU.
double reserved_gpu_memory_gb(torch::Device device);

// The driver's name of the device; empty if it is no GPU.
std::string gpu_name(torch::Device device);

}  // namespace brigade
