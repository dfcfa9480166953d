#include "brigade/planner/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/base/error.h"
#include "brigade/base/units.h"

namespace brigade::planner {
namespace {

constexpr const char* kDtypeNames[] = {"fp32", "bf16", "fp8", "mxfp8", "fp4"};

// Hop latencies of NCCL's tuning tables (its Simple protocol): 3.4 us over
// NVLink, 14 us over a network.
constexpr double kNvLinkLatency = 3.4e-6;
constexpr double kPcieLatency = 5.7e-6;
constexpr double kNetworkLatency = 14e-6;

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// Sixteen lanes, one direction.
constexpr double kPcie3 = 16 * kGiga;
constexpr double kPcie4 = 32 * kGiga;
constexpr double kPcie5 = 64 * kGiga;

// CUDA context, cuBLAS and NCCL buffers as nvidia-smi shows them before a
// program allocates a tensor.
constexpr int64_t kGpuReserved = 2 * GiB;

Device v100() {
  return {
      .name = "V100-SXM3-32GB",
      .memory_bytes = 32 * GiB,
      .memory_bytes_per_s = 0.9 * kTera,
      .host_bytes_per_s = kPcie3,
      .compute_units = 80,
      .peak_flops = {15.7 * kTera, 125 * kTera, 0, 0, 0},
      .sustained = 0.75,
      .attention = {0.3, 0.35, 0.35},
      .kernel_gap_s = 2e-6,
      .reserved_bytes = kGpuReserved};
}

Device a100(int64_t memory_gib) {
  return {
      .name = fmt::format("A100-SXM4-{}GB", memory_gib),
      .memory_bytes = memory_gib * GiB,
      .memory_bytes_per_s = (memory_gib == 40 ? 1.555 : 2.039) * kTera,
      .host_bytes_per_s = kPcie4,
      .compute_units = 108,
      .peak_flops = {156 * kTera, 312 * kTera, 0, 0, 0},
      .sustained = 0.75,
      .attention = {0.325, 0.56, 0.56},
      .kernel_gap_s = 2e-6,
      .reserved_bytes = kGpuReserved};
}

Device hopper(const char* name, int64_t memory_gib, double bytes_per_s) {
  return {
      .name = name,
      .memory_bytes = memory_gib * GiB,
      .memory_bytes_per_s = bytes_per_s,
      .host_bytes_per_s = kPcie5,
      .compute_units = 132,
      .peak_flops = {494 * kTera, 989 * kTera, 1979 * kTera, 1979 * kTera, 0},
      .sustained = 0.62,
      .attention = {0.20, 0.36, 0.56},
      .kernel_gap_s = 2e-6,
      .reserved_bytes = kGpuReserved};
}

Device blackwell(
    const char* name,
    int64_t memory_gb,
    double bf16_tera,
    double fp4_tera) {
  return {
      .name = name,
      .memory_bytes = memory_gb * 1'000'000'000,
      .memory_bytes_per_s = 8 * kTera,
      .host_bytes_per_s = kPcie5,
      .compute_units = 148,
      .peak_flops =
          {bf16_tera / 2 * kTera,
           bf16_tera * kTera,
           2 * bf16_tera * kTera,
           2 * bf16_tera * kTera,
           fp4_tera * kTera},
      .sustained = 0.58,
      .attention = {0.10, 0.18, 0.45},
      .kernel_gap_s = 2e-6,
      .reserved_bytes = kGpuReserved};
}

// TPU v4: the 2021 data sheet; a torus of 6 links of 50 GB/s, in cubes of 64
// chips, and the data center's network between them.
Device tpu_v4() {
  return {
      .name = "TPU-v4",
      .memory_bytes = 32 * GiB,
      .memory_bytes_per_s = 1.2 * kTera,
      .host_bytes_per_s = kPcie3,
      .compute_units = 8,
      .peak_flops = {137 * kTera, 275 * kTera, 0, 0, 0},
      .sustained = 0.85,
      .attention = {0.4, 0.5, 0.5},
      .kernel_gap_s = 0,
      .reserved_bytes = 1 * GiB};
}

Link nvlink(double gigabytes_per_s) {
  return {gigabytes_per_s * kGiga, kNvLinkLatency, 0.78};
}

Link network(double gigabits_per_s) {
  return {gigabits_per_s / 8 * kGiga, kNetworkLatency, 0.85};
}

std::vector<Machine> make_machines() {
  // PCIe 4.0 x16: 32 GB/s, of which two devices that exchange reach most.
  const Link pcie = {kPcie4, kPcieLatency, 0.7};
  const Device h100 = hopper("H100-SXM5-80GB", 80, 3.35 * kTera);
  const Device h200 = hopper("H200-SXM5-141GB", 131, 4.8 * kTera);
  Device h100_500w = hopper("H100-96GB-HBM2e-500W", 95, 2.4 * kTera);
  // Power follows the cube of the clock: (500 / 700)^(1/3) of the 700 W part.
  h100_500w.sustained *= 0.894;
  return {
      {"a100-40", a100(40), 8, 8, nvlink(300), network(1600)},
      {"a100-80", a100(80), 8, 8, nvlink(300), network(1600)},
      {"a100-40-pcie", a100(40), 8, 1, pcie, network(200)},
      {"a100-80-pcie", a100(80), 8, 1, pcie, network(200)},
      {"h100", h100, 8, 8, nvlink(450), network(3200)},
      {"h100-96-500w", h100_500w, 8, 8, nvlink(450), network(3200)},
      {"h200", h200, 8, 8, nvlink(450), network(3200)},
      {"b200",
       blackwell("B200-SXM-192GB", 192, 2250, 9000),
       8,
       8,
       nvlink(900),
       network(3200)},
      // An NVL72 domain; jobs of a power of two use 64 of its devices.
      {"gb200",
       blackwell("GB200-192GB", 192, 2500, 10000),
       64,
       64,
       nvlink(900),
       network(64 * 400)},
      {"gb300",
       blackwell("GB300-288GB", 288, 2500, 15000),
       64,
       64,
       nvlink(900),
       network(64 * 800)},
      {"v100", v100(), 16, 8, nvlink(150), network(800)},
      {"tpu-v4",
       tpu_v4(),
       64,
       16,
       {6 * 50 * kGiga, 1e-6, 0.8},
       {64 * 3.125 * kGiga, 50e-6, 0.8}}};
}

}  // namespace

const char* to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kExchange:
      return "exchange";
  }
  return "?";
}

const char* to_string(ProductDtype dtype) {
  return kDtypeNames[static_cast<size_t>(dtype)];
}

std::optional<ProductDtype> parse_product_dtype(std::string_view name) {
  for (int i = 0; i < kProductDtypes; ++i) {
    if (name == kDtypeNames[i])
      return static_cast<ProductDtype>(i);
  }
  return std::nullopt;
}

const std::vector<Machine>& known_machines() {
  static const std::vector<Machine> machines = make_machines();
  return machines;
}

const Machine& find_machine(std::string_view name) {
  std::vector<std::string> names;
  for (const Machine& machine : known_machines()) {
    if (machine.name == name)
      return machine;
    names.push_back(machine.name);
  }
  throw ConfigError(fmt::format(
      "[planner] unknown machine '{}'; known are {}; or give a JSON file with "
      "{}",
      name,
      fmt::join(names, ", "),
      machine_fields()));
}

}  // namespace brigade::planner
