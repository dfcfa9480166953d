// What a machine can do, in numbers of its makers' data sheets and of published
// measurements: one device, the links inside a node and the network between
// nodes. find_machine() knows those of machines.json by name; parse_machine()
// reads any from JSON. docs/planner.md lists the fields with their sources.
//
// PURE.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/options/choice.h"

namespace brigade::machine {

// The dtypes in which a matrix product multiplies. kMxfp8 has one scale per 32
// elements.
enum class ProductDtype { kFp32, kBf16, kFp8, kMxfp8, kFp4 };

enum class AttentionKernel {
  kFlash1,  // FlashAttention 1 and its Triton version
  kFlash2,
  kFlash3,  // FlashAttention 3, cuDNN 9
};
inline constexpr int kFlashKernels = 3;

enum class Collective {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kExchange,  // every rank passes a block to the next one
};

}  // namespace brigade::machine

namespace brigade {

template <>
inline constexpr std::array kChoices<machine::ProductDtype>{
    Choice{machine::ProductDtype::kFp32, "fp32"},
    Choice{machine::ProductDtype::kBf16, "bf16"},
    Choice{machine::ProductDtype::kFp8, "fp8"},
    Choice{machine::ProductDtype::kMxfp8, "mxfp8"},
    Choice{machine::ProductDtype::kFp4, "fp4"}};

template <>
inline constexpr std::array kChoices<machine::Collective>{
    Choice{machine::Collective::kAllReduce, "all_reduce"},
    Choice{machine::Collective::kReduceScatter, "reduce_scatter"},
    Choice{machine::Collective::kAllGather, "all_gather"},
    Choice{machine::Collective::kExchange, "exchange"}};

}  // namespace brigade

namespace brigade::machine {

using brigade::to_string;

inline constexpr size_t kProductDtypes = kChoices<ProductDtype>.size();

// What products of one size reach: their smallest dimension, and FLOP/s.
struct ProductRate {
  int64_t size = 0;
  double flops_per_s = 0;
  bool operator==(const ProductRate&) const = default;
};

struct Device {
  std::string name;
  int64_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // peak
  // The link over which a batch comes from its host; 0: the host's memory is
  // the device's.
  double host_bytes_per_s = 0;
  // Units that each work on one tile of a product at a time: SMs of a GPU,
  // cores of a CPU.
  int compute_units = 1;
  // Dense peak FLOP/s by ProductDtype; 0: the device has no such products.
  std::array<double, kProductDtypes> peak_flops = {};
  // The part of the peak that large products reach for hours, at the clock that
  // the power limit leaves.
  double sustained = 0.75;
  // The part of the bf16 peak that kFlash1, 2 and 3 reach over a forward and a
  // backward pass with heads of 128.
  std::array<double, kFlashKernels> attention = {0.3, 0.5, 0.5};
  double kernel_gap_s = 2e-6;  // between two kernels of one stream
  // Measured rates, which `brigade plan --calibrate` writes: products by dtype,
  // sizes ascending; empty: from tiles, peak, `sustained`. Then fused
  // elementwise ops and the loss's passes over logits; 0: as other passes over
  // memory.
  std::array<std::vector<ProductRate>, kProductDtypes> product_rates;
  double elementwise_bytes_per_s = 0;           // forward
  double elementwise_backward_bytes_per_s = 0;  // 0: as forward
  double logits_bytes_per_s = 0;
  // What each product of a linear takes per element of its weight, whatever the
  // number of rows: packing it, adding to its gradient.
  double weight_element_s = 0;
  // What the computation of a whole layer takes over the sum of its parts:
  // between two ops a core does other things, and finds less in its caches.
  double forward_factor = 1;
  double backward_factor = 1;
  // What full recomputation adds, over a layer's forward: memory that was just
  // used is used again, and backward finds what was made a moment ago.
  double recompute_factor = 1;
  int64_t reserved_bytes = 0;  // context and libraries, before any tensor

  double peak(ProductDtype dtype) const {
    return peak_flops[static_cast<size_t>(dtype)];
  }
};

// What a collective of so many bytes of activations among so many ranks of one
// node took, between computations; an exchange, beside the attention of which
// it is a step: what it added to that. `bytes` as collective_seconds() counts
// them.
struct CollectiveSample {
  Collective collective = Collective::kAllReduce;
  int ranks = 0;
  int64_t bytes = 0;
  double seconds = 0;
  bool operator==(const CollectiveSample&) const = default;
};

struct Link {
  double bytes_per_s = 0;   // one direction; of a device, or of a whole node
  double latency_s = 0;     // of one hop
  double efficiency = 0.8;  // the part that collectives of large sizes reach
};

struct Machine {
  std::string name;
  Device device;
  int devices_per_node = 1;
  // Network cards of a node. All collectives together use them all; a transfer
  // from one device has one.
  int cards_per_node = 1;
  Link intra;  // of one device to the others of its node
  Link inter;  // of a whole node; its devices share it
  // Constants::contention, where it was measured: on CPUs, whose cores also
  // carry the communication, it is far larger than on GPUs.
  std::optional<double> contention;
  std::optional<double> device_spread;  // Constants::device_spread, likewise
  // Measured; of each collective and number of ranks by bytes, ascending. What
  // is not in it follows from the links.
  std::vector<CollectiveSample> collectives;
};

// Every machine that is known by name.
const std::vector<Machine>& known_machines();
// Throws ConfigError that lists the known names and the fields of a machine
// file.
const Machine& find_machine(std::string_view name);

// A machine file. Every problem is added to `problems` as
// "<pointer>/key: ...", unknown keys with the known ones; the result is usable
// only when none was added.
Machine parse_machine(
    const nlohmann::json& json,
    const std::string& pointer,
    std::vector<std::string>& problems);
nlohmann::json to_json(const Machine& machine);

// "name, devices_per_node, device.memory_bytes, ...", for messages.
std::string machine_fields();

}  // namespace brigade::machine
