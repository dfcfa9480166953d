#include "brigade/doctor/machine_facts.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <thread>

#include "brigade/comm/gpus.h"
#include "brigade/files/file.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/launch/network.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// Libraries of this process whose file name contains `part`.
std::string loaded_libraries(const std::string& part) {
  std::set<std::string> found;
  std::ifstream lines("/proc/self/maps");
  for (std::string line; std::getline(lines, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos)
      continue;
    const fs::path path = line.substr(slash);
    if (path.filename().string().find(part) != std::string::npos)
      found.insert(path.string());
  }
  std::string text;
  for (const std::string& path : found)
    text += (text.empty() ? "" : ", ") + path;
  return text;
}

MachineFact blas_fact() {
  const std::string openblas = loaded_libraries("openblas");
  if (!openblas.empty())
    return {"BLAS", openblas, ""};
  if (at::globalContext().hasMKL())
    return {"BLAS", "MKL inside libtorch", ""};
  const std::string blas = loaded_libraries("libblas");
  if (blas.empty())
    return {"BLAS", "inside libtorch", ""};
  return {
      "BLAS",
      blas,
      "the reference BLAS is 15 times slower than OpenBLAS; install "
      "libopenblas0-pthread"};
}

MachineFact libtorch_fact() {
  const std::string all = loaded_libraries("libtorch_cpu");
  return {
      "libtorch",
      fmt::format("{} ({})", TORCH_VERSION, all),
      all.find(", ") == std::string::npos
          ? ""
          : "two libtorch are loaded at once; LD_LIBRARY_PATH or a preloaded "
            "library brings the second one"};
}

MachineFact gpu_fact() {
  if (loaded_libraries("libtorch_cuda").empty())
    return {"GPUs", "none: this libtorch was built without CUDA", ""};
  const Gpus gpus = find_gpus();
  if (gpus.missing.empty()) {
    return {
        "GPUs",
        fmt::format(
            "{}, the first is {}", gpus.count, gpu_name({torch::kCUDA, 0})),
        ""};
  }
  const bool has_driver = fs::exists("/dev/nvidiactl");
  return {
      "GPUs",
      "none: " + gpus.missing,
      has_driver ? "the driver is there, but does not fit this build of "
                   "libtorch; see nvidia-smi"
                 : ""};
}

}  // namespace

std::vector<MachineFact> machine_facts() {
  return {
      {"processor",
       fmt::format(
           "{}, {} CPUs for this process",
           value_in("/proc/cpuinfo", "model name"),
           std::thread::hardware_concurrency()),
       ""},
      {"bf16 kernels", ops::tile_product_instructions(), ""},
      {"threads of a rank", fmt::format("{}", at::get_num_threads()), ""},
      {"memory",
       fmt::format(
           "{}, of which {} are free",
           value_in("/proc/meminfo", "MemTotal"),
           value_in("/proc/meminfo", "MemAvailable")),
       ""},
      libtorch_fact(),
      blas_fact(),
      gpu_fact()};
}

double disk_bytes_per_s(const fs::path& folder, int64_t bytes) {
  // A name that nobody else has, on this host or another.
  const fs::path path =
      folder / fmt::format(".brigade-doctor-{}-{}", host_name(), ::getpid());
  // Not compressible, for file systems that would.
  std::string block(static_cast<size_t>(bytes), '\0');
  uint32_t state = 1;
  for (char& byte : block) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  const int64_t begin_ns = steady_now_ns();
  write_text_file(path, block);
  const double seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
  fs::remove(path);
  return static_cast<double>(bytes) / seconds;
}

}  // namespace brigade
