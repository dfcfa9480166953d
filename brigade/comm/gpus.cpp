#include "brigade/comm/gpus.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

#ifdef BRIGADE_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace brigade {
namespace {

#ifdef BRIGADE_HAS_CUDA
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}
#endif

}  // namespace

#ifdef BRIGADE_HAS_CUDA

Gpus find_gpus() {
  try {
    return {.count = c10::cuda::device_count_ensure_non_zero(), .missing = ""};
  } catch (const c10::Error& error) {
    return {
        .count = 0,
        .missing = fmt::format(
            "CUDA finds no GPU that it can use here: {}",
            first_line(error.what_without_backtrace()))};
  }
}

double reserved_gpu_memory_gb(torch::Device device) {
  if (!device.is_cuda())
    return 0;
  constexpr size_t kAll = 0;  // pools together
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return static_cast<double>(stats.reserved_bytes[kAll].current) / 1e9;
}

std::string gpu_name(torch::Device device) {
  if (!device.is_cuda())
    return {};
  return at::cuda::getDeviceProperties(device.index())->name;
}

#else

Gpus find_gpus() {
  return {};
}

double reserved_gpu_memory_gb(torch::Device /* device */) {
  return 0;
}

std::string gpu_name(torch::Device /* device */) {
  return {};
}

#endif

void check_gpus(const Gpus& gpus, const LaunchEnvironment& environment) {
  if (!gpus.missing.empty())
    throw ConfigError("[device] " + gpus.missing);
  if (environment.local_rank < gpus.count)
    return;
  throw ConfigError(fmt::format(
      "[device] rank {} is number {} of {} ranks on its host, but sees {} "
      "GPU{} there: start at most as many ranks per host, one for each GPU "
      "that CUDA_VISIBLE_DEVICES leaves (under srun: --gpu-bind=none, so that "
      "each rank sees them all)",
      environment.rank,
      environment.local_rank,
      environment.local_world_size,
      gpus.count,
      gpus.count == 1 ? "" : "s"));
}

}  // namespace brigade
