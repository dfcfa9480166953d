// From measurements of a machine to its description. The measurements are made
// by calibrate/measure.h.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/machine/constants.h"
#include "brigade/machine/machine.h"
#include "brigade/topology/token_layout.h"

namespace brigade::machine {

// An all-reduce of so many bytes among so many ranks.
struct AllReduceSample {
  int ranks = 0;
  int64_t bytes = 0;
  double seconds = 0;
};

// All-reduces of so many bytes each, one after another, beside a computation.
struct OverlapSample {
  int ranks = 0;
  int64_t bytes = 0;
  int count = 0;
  double seconds = 0;  // that they added to the computation
};

// What one of many layers took on a rank of tp or cp.
struct LayerSample {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t intermediate = 0;
  int64_t sequence_tokens = 0;  // of the whole sequence
  int64_t sequences = 0;
  int tp = 1;
  int cp = 1;
  TokenLayout tokens = TokenLayout::kReplicated;
  double forward_s = 0;  // 0: was not measured
  double backward_s = 0;
};

// A layer that ranks of tp or cp share, and in turns with it one that a rank
// has to itself, with as many tokens.
struct SharedLayerSample {
  LayerSample shared;
  LayerSample single;
};

// Width of the heads with which attention is measured.
inline constexpr int64_t kCalibrationHeadDim = 64;

// What one rank reaches while all ranks of the machine do the same.
struct Measurements {
  std::string name;
  int ranks = 1;
  int64_t memory_bytes = 0;    // of one rank's part of the machine
  int64_t reserved_bytes = 0;  // of a process before it has a model
  // By size, ascending; either may be empty.
  std::vector<ProductRate> fp32_products;
  std::vector<ProductRate> bf16_products;
  // Causal, forward and backward: 3.5 times the forward's FLOPs.
  double attention_flops_per_s = 0;
  double memory_bytes_per_s = 0;       // of the optimizer's pass
  double elementwise_bytes_per_s = 0;  // of norms and activations, forward
  double elementwise_backward_bytes_per_s = 0;
  double logits_bytes_per_s = 0;  // of the loss, less its products
  double weight_element_s = 0;    // see Device::weight_element_s
  double kernel_gap_s = 0;        // of the smallest op
  double device_spread = 0;       // see Constants::device_spread
  LayerSample layer;
  LayerSample recomputed_layer;  // backward_s: with its forward once more
  std::vector<SharedLayerSample> shared_layers;  // each kind by length
  std::vector<AllReduceSample> all_reduces;      // of gradients
  OverlapSample overlap;                         // of gradients too
  std::vector<CollectiveSample> collectives;     // see Machine::collectives
  // The part of the time of computation in which this rank had no CPU because
  // other programs ran: figures of a busy machine are too low.
  double taken_by_others = 0;
};

// The machine whose predictions are the measurements: a node of that many
// devices. Its peaks are the largest rates that were measured. Collectives of
// tensor parallel take what whole layers took beyond their computation, in
// equal parts: ranks that meet in every layer wait for the later one, and turn
// from computing to communicating. Longer ones than any layer's take as much
// more as their samples do, which were measured apart. Exchanges of context
// parallel are measured by layers alone. The link's
// latency and bandwidth fit the all-reduces with the least sum of squared
// relative errors, as rings. A network between nodes is not measured: `inter`
// is as `intra`.
Machine machine_of(
    const Measurements& measurements,
    const Constants& constants);

}  // namespace brigade::machine
